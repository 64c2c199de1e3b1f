"""A teacher's distribution: what files hold, beside the model's own softmax in float64."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from rank_processes import run_ranks
from tiny_models import (
    ARCHITECTURES,
    VOCABULARY,
    demonstration_records,
    folder_bytes,
    model_folder,
    word_tokenizer,
)
from torch import Tensor

from steps.distillation.cached_teacher import Teacher, read_teacher, run_teacher
from steps.distillation.config import Precision, TeacherConfig
from steps.distillation.distributions import values_at
from steps.models.config import Dtype
from steps.models.folders import load_model
from steps.models.ranks import together
from steps.models.workplace import Workplace
from steps.scoring.examples import TokenGroup, read_demonstrations

EXACT = TeacherConfig(dtype=Dtype.float64, precision=Precision.float32, groups_per_shard=3)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """The folder of tokens, which has 60 of the 64 tokens of a model's head."""
    (folder := tmp_path / "tokens").mkdir()
    word_tokenizer().backend_tokenizer.save(str(folder / "tokenizer.json"))
    described = json.loads((folder / "tokenizer.json").read_text())
    words = described["model"]["vocab"]
    described["model"]["vocab"] = {word: i for word, i in words.items() if i < 60}
    (folder / "tokenizer.json").write_text(json.dumps(described))
    return folder


def teacher_of(
    model: Path, records: list[dict], work: Path, config: TeacherConfig, tokens: Path, **more: Any
) -> dict[str, Any]:
    place = Workplace(work / "out", work / "scratch", **more)
    return run_teacher(model, records, config, place, tokens)


def own_logps(model: Path, group: TokenGroup, vocabulary: int, temperature: float = 1) -> Tensor:
    """log p over the first tokens of the vocabulary at each scored token, by the model's forward of
    the row alone, float64."""
    ids = [*group.prompt_ids, *group.responses[0].ids]
    with torch.no_grad():
        logits = load_model(model, Dtype.float64)(torch.tensor([ids])).logits[0].double()
    logits = logits[len(group.prompt_ids) - 1 : -1, :vocabulary] / temperature
    return logits.log_softmax(dim=-1)


def dense(teacher: Teacher, group: TokenGroup, temperature: float = 1) -> Tensor:
    """The teacher's log p by id, as far as it is kept."""
    (asked,) = teacher.asked([group])
    assert asked.wanted is not None
    kept = teacher.at([group], temperature)[:, : asked.wanted.shape[1]]
    empty = torch.full((len(kept), teacher.vocabulary), torch.nan, dtype=torch.float64)
    return empty.scatter(1, torch.from_numpy(asked.wanted).long(), kept)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_files_hold_the_models_own_distribution(name: str, tmp_path: Path, tokenizer: Path) -> None:
    model, records = model_folder(tmp_path / "model", ARCHITECTURES[name]), small(7)
    (model / "tokenizer.json").write_bytes((tokenizer / "tokenizer.json").read_bytes())
    groups = read_demonstrations(records, 60)
    for top_k in (8, 60, 1000):
        work = tmp_path / f"{top_k}"
        told = teacher_of(model, records, work, replace(EXACT, top_k=top_k), tokenizer)
        teacher = read_teacher(work / "out")
        assert teacher.vocabulary == 60  # of a head of 64 rows
        assert teacher.is_whole == (top_k >= 60)
        assert told["rows"] == 7
        assert told["tokens"] == len(teacher.ids) == sum(len(r["response_ids"]) for r in records)
        logps, files = [], sorted((work / "out").glob("teacher-*.parquet"))
        assert len(files) == 3
        for file in files:
            logps += pq.read_table(file)["logps"].to_pylist()
        for group, of_targets in zip(groups, logps, strict=True):
            expected = own_logps(model, group, 60)
            targets = torch.tensor(group.responses[0].ids)[:, None]
            assert_near(
                torch.tensor(of_targets, dtype=torch.float64),
                expected.gather(1, targets)[:, 0],
                1e-6,
            )
            kept = dense(teacher, group)
            known = ~kept.isnan()
            assert known.sum(dim=1).tolist() == [min(top_k, 60)] * len(targets)
            assert_near(kept[known], expected[known], 1e-6)
            assert (
                expected[~known].view(len(targets), -1) <= kept.nan_to_num(9).amin(1)[:, None]
            ).all()
            mass = teacher.at([group], 1).exp().sum(dim=1)
            assert_near(mass, torch.ones_like(mass))
        assert told["mass"] == pytest.approx(1.0 if top_k >= 60 else told["mass"])


@pytest.mark.parametrize("precision", Precision)
def test_temperatures_are_exact_at_one_and_two_and_bounded_elsewhere(
    precision: Precision, tmp_path: Path
) -> None:
    model, records = model_folder(tmp_path / "model"), small(5)
    config = replace(EXACT, precision=precision, top_k=8)
    teacher_of(model, records, tmp_path, config, tmp_path)
    teacher, groups = read_teacher(tmp_path / "out"), read_demonstrations(records, VOCABULARY)
    error = 1e-6 if precision is Precision.float32 else 2**-11 * 12
    for group in groups:
        for temperature in (0.7, 1.0, 1.5, 2.0, 4.0, 50.0):
            whole = own_logps(model, group, VOCABULARY, temperature).exp()
            (asked,) = teacher.asked([group])
            assert asked.wanted is not None
            kept = whole.gather(1, torch.from_numpy(asked.wanted).long())
            rest = 1 - kept.sum(dim=1)
            read = teacher.at([group], temperature).exp()
            if temperature in (1.0, 2.0):
                assert_near(read[:, :-1] / kept, torch.ones_like(kept), error)
                assert_near(read[:, -1] / rest, torch.ones_like(rest), error)
            elif temperature > 1:
                assert (read[:, -1] >= rest * (1 - error)).all()
            assert_near(read.sum(dim=1), torch.ones_like(rest))


def test_an_interrupted_teacher_goes_on_at_the_next_file(tmp_path: Path) -> None:
    model, records = model_folder(tmp_path / "model"), small(7)

    class Interrupted(Exception):
        pass

    def interrupt(done: int, total: int, metrics: object) -> None:
        if done == 6:
            raise Interrupted

    with pytest.raises(Interrupted):
        teacher_of(model, records, tmp_path / "a", EXACT, tmp_path, on_progress=interrupt)
    finished = {f: f.stat().st_mtime_ns for f in (tmp_path / "a/scratch/shards").iterdir()}
    assert len(finished) == 2
    teacher_of(model, records, tmp_path / "a", EXACT, tmp_path)
    assert all(file.stat().st_mtime_ns == then for file, then in finished.items())
    teacher_of(model, records, tmp_path / "b", EXACT, tmp_path)
    assert folder_bytes(tmp_path / "a/out") == folder_bytes(tmp_path / "b/out")


def over_ranks(model: Path, work: Path) -> None:
    with together() as ranks:
        place = Workplace(work / "out", work / "scratch", ranks=ranks)
        run_teacher(model, small(7), replace(EXACT, tokens_per_forward=24), place, work)


@pytest.mark.slow
def test_ranks_share_the_work_and_find_the_same(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    (tmp_path / "two").mkdir()
    assert run_ranks(over_ranks, model, tmp_path / "two") == [0, 0]
    teacher_of(model, small(7), tmp_path / "one", EXACT, tmp_path)
    one, two = (read_teacher(tmp_path / n / "out") for n in ("one", "two"))
    groups = read_demonstrations(small(7), VOCABULARY)
    for group in groups:
        assert_near(dense(one, group).nan_to_num(1), dense(two, group).nan_to_num(1), 1e-6)


def test_what_does_not_fit_is_one_sentence(tmp_path: Path, tokenizer: Path) -> None:
    model, records = model_folder(tmp_path / "model"), small(3)
    teacher_of(model, records, tmp_path, EXACT, tmp_path)
    teacher = read_teacher(tmp_path / "out")
    (stranger, *_) = read_demonstrations(small(1, seed=5), VOCABULARY)
    with pytest.raises(ValueError, match=r"has no row 'data:0'.*compute it from the same tokens"):
        teacher.asked([stranger])
    with pytest.raises(ValueError, match="has no teacher; compute it with teacher_logprobs"):
        read_teacher(tmp_path / "model")
    word_tokenizer(backwards=True).save_pretrained(model)
    with pytest.raises(ValueError, match="must share one vocabulary"):
        teacher_of(model, records, tmp_path / "other", EXACT, tokenizer)
    broken = load_model(model)
    with torch.no_grad():
        broken.get_output_embeddings().weight[3] = torch.nan  # pyright: ignore
    shutil.rmtree(model)
    broken.save_pretrained(model)
    with pytest.raises((FloatingPointError, ValueError), match=r"row 'data:|not finite"):
        teacher_of(model, records, tmp_path / "broken", EXACT, tmp_path)


# --- the student ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("top_k", "temperature"), [(5, 1.0), (5, 2.5), (16, 1.0), (16, 0.5)])
def test_values_and_gradients_are_those_of_dense_operations(top_k: int, temperature: float) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(6, 20, generator=draw, dtype=torch.float64)).requires_grad_()
    ids = torch.stack([torch.randperm(16, generator=draw)[:top_k] for _ in range(6)])
    targets = torch.randint(16, (6,), generator=draw)
    shared = logits[:, :16]
    soft = (shared / temperature).log_softmax(-1)
    parts = [shared.log_softmax(-1).gather(1, targets[:, None]), soft.gather(1, ids)]
    if top_k < 16:
        others = torch.ones(6, 16, dtype=torch.bool).scatter(1, ids, False)
        parts.append(soft.masked_fill(~others, -torch.inf).logsumexp(-1, keepdim=True))
    expected = torch.cat(parts, 1)
    weights = torch.randn(expected.shape, generator=draw, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((expected * weights).sum(), logits)

    again = logits.detach().requires_grad_()
    found = values_at(again.clone(), ids, targets, temperature, 16)
    hits = found[:, 1:3].detach()
    best = shared.argmax(-1)
    assert torch.equal(hits, torch.stack([best == targets, best == ids[:, 0]], 1).double())
    numbers = torch.cat([found[:, :1], found[:, 3:]], 1)
    torch.testing.assert_close(numbers, expected, rtol=0, atol=1e-12)
    (own,) = torch.autograd.grad((numbers * weights).sum(), again)
    torch.testing.assert_close(own, gradient, rtol=0, atol=1e-12)


def small(count: int, seed: int = 0) -> list[dict]:
    """Records with ids below 60."""
    return [
        {n: [i % 60 for i in v] if isinstance(v, list) else v for n, v in record.items()}
        for record in demonstration_records(count, seed)
    ]


def assert_near(found: Tensor, expected: Tensor, error: float = 1e-9) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=error)
