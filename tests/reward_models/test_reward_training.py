"""Training a reward model as a step starts it: a folder and pairs in, a classifier's folder out."""

import json
import math
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_processes import exit_code
from rank_processes import run_ranks
from safetensors.torch import load_file, save_file
from tiny_models import (
    folder_bytes,
    gpt2,
    log_of,
    model_folder,
    pair_records,
    word_tokenizer,
)
from torch.nn.functional import logsigmoid
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from waiting import kill_this_process

from steps.models.config import Dtype, LoraConfig
from steps.models.ranks import together
from steps.models.workplace import Workplace
from steps.reward_models.bradley_terry import BradleyTerry
from steps.reward_models.classifier import load_reward_model, start_reward_model
from steps.reward_models.config import RewardConfig, RewardScoring
from steps.reward_models.reward_scores import score_pairs
from steps.reward_models.reward_training import run_reward_training
from steps.training.config import OptimizerConfig, Schedule
from steps.training.schedule import batch_indices
from steps.views import open_model

FAST = OptimizerConfig(learning_rate=1e-2, schedule=Schedule.constant)
CONFIG = RewardConfig(batch_size=4, epochs=4, tokens_per_forward=64, optimizer=FAST)


@pytest.fixture
def init(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "init")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with a run in it, which tests only look at, and its summary."""
    work = tmp_path_factory.mktemp("run")
    init = model_folder(work / "init")
    return work, trained(init, work, replace(CONFIG, epochs=8))


def trained(
    init: Path, work: Path, config: RewardConfig = CONFIG, records: list[dict] | None = None
) -> dict[str, Any]:
    place = Workplace(work / "model", work / "scratch")
    return run_reward_training(init, records or pair_records(12), config, place)


def scores_of(folder: Path, records: list[dict], work: Path) -> list[float]:
    place = Workplace(work / "scores", work / "scores-scratch")
    scored, _ = score_pairs(records, folder, RewardScoring(), place)
    return [score for record in scored for score in record["scores"]]


def sequences(records: Sequence[dict]) -> list[list[int]]:
    return [r["prompt_ids"] + r[f"{side}_ids"] for r in records for side in ("chosen", "rejected")]


def test_it_starts_from_exactly_ln_2_and_learns_to_prefer(run: tuple[Path, Any]) -> None:
    work, summary = run
    first, *_, last = log_of(work / "model")
    assert first["loss"] == math.log(2)
    assert [first[f"rewards/{side}"] for side in ("chosen", "rejected")] == [0, 0]
    assert last["loss"] < 0.3
    assert last["rewards/accuracies"] == 1
    assert summary["final"]["loss"] == last["loss"]
    assert "bradley_terry" in (work / "model/summary.md").read_text()


def test_transformers_loads_the_folder_and_scores_alike(
    run: tuple[Path, Any], tmp_path: Path
) -> None:
    records, made = pair_records(12), run[0] / "model"
    ours = scores_of(made, records, tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(made)
    assert model.config.num_labels == 1
    with torch.no_grad():
        theirs = [model(input_ids=torch.tensor([ids])).logits.item() for ids in sequences(records)]
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert max(ours) - min(ours) > 0.5


def test_load_gives_a_model_with_the_head_that_its_folder_says(
    run: tuple[Path, Any], tmp_path: Path
) -> None:
    heads = []
    for name in ("init", "model"):
        folder = shutil.copytree(run[0] / name, tmp_path / name)
        word_tokenizer().save_pretrained(folder)
        model, _ = open_model(folder)
        heads.append(type(model).__name__.removeprefix("Llama"))
    assert heads == ["ForCausalLM", "ForSequenceClassification"]


def test_training_follows_trl_s_formula_in_padded_batches_of_transformers(tmp_path: Path) -> None:
    """The same steps by a loop that knows nothing of packs: in float64, GPT-2 (which computes in no
    other dtype), a padded batch of both sides, the mean of TRL's loss, and AdamW."""
    init, records = model_folder(tmp_path / "init", gpt2), pair_records(10)
    config = replace(CONFIG, dtype=Dtype.float64, tokens_per_forward=40, max_steps=8)
    config = replace(config, loss=BradleyTerry(center_rewards_coefficient=0.1))
    trained(init, tmp_path, config, records)

    model = AutoModelForSequenceClassification.from_pretrained(
        init, num_labels=1, dtype=torch.float64, pad_token_id=63
    ).eval()
    torch.nn.init.zeros_(model.score.weight)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([*matrices, *rest], lr=1e-2, weight_decay=0.0)
    losses = []
    for step in range(8):
        chosen = batch_indices(len(records), config.batch_size, step, config.seed)
        rows = [records[i] for i in chosen]
        both = sequences(rows)
        scores = padded_scores(model, both[::2] + both[1::2])
        better, worse = scores.chunk(2)
        loss = -logsigmoid(better - worse).mean() + 0.1 * torch.mean((better + worse) ** 2)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    ours = [step["loss"] for step in log_of(tmp_path / "model")]
    assert ours == pytest.approx(losses, rel=0, abs=1e-9)
    assert losses[-1] < 0.8 * losses[0]


def padded_scores(model: Any, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Scores of a padded batch, each at its last token whatever the padding token is."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    mask = torch.arange(longest) < torch.tensor([len(row) for row in rows])[:, None]
    hidden = model.transformer(input_ids=ids, attention_mask=mask).last_hidden_state
    last = hidden[torch.arange(len(rows)), mask.sum(dim=1) - 1]
    return model.score(last)[:, 0]


def test_the_gradient_of_a_batch_does_not_depend_on_how_it_is_cut(tmp_path: Path) -> None:
    init, budgets = model_folder(tmp_path / "init", gpt2), (1, 40, 10**6)
    for tokens in budgets:
        config = replace(CONFIG, dtype=Dtype.float64, tokens_per_forward=tokens, max_steps=4)
        trained(init, tmp_path / f"{tokens}", config)
    logs = [log_of(tmp_path / f"{tokens}" / "model") for tokens in budgets]
    for *cut, whole in zip(*logs, strict=True):
        for one in cut:
            assert one == pytest.approx(whole, rel=1e-9, abs=1e-10)


def test_held_out_pairs_are_evaluated_and_the_best_step_is_kept(init: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, eval_every_steps=3, keep_best="eval_rewards/accuracies")
    place = Workplace(tmp_path / "model", tmp_path / "scratch")
    others = pair_records(5, seed=1)
    summary = run_reward_training(init, pair_records(12), config, place, others)
    log = {m["step"]: m for m in log_of(tmp_path / "model")}
    evaluated = {step: m["eval_rewards/accuracies"] for step, m in log.items() if "eval_loss" in m}
    assert summary["best_step"] == max(evaluated, key=lambda step: evaluated[step])
    kept = scores_of(tmp_path / "model", others, tmp_path)
    accurate = sum(c > r for c, r in zip(kept[::2], kept[1::2], strict=True)) / len(others)
    assert accurate == pytest.approx(evaluated[summary["best_step"]])


def test_training_goes_on_from_a_reward_model(init: Path, tmp_path: Path) -> None:
    records = pair_records(4)
    trained(init, tmp_path / "first", records=records)
    scores = scores_of(tmp_path / "first/model", records, tmp_path)
    trained(tmp_path / "first/model", tmp_path / "second", records=records)
    first = log_of(tmp_path / "second/model")[0]
    assert first["rewards/chosen"] == pytest.approx(sum(scores[::2]) / 4, rel=1e-12)


def test_adapters_and_the_head_are_trained_and_merged(init: Path, tmp_path: Path) -> None:
    records = pair_records(8)
    config = replace(CONFIG, epochs=10, lora=LoraConfig(r=4))
    trained(init, tmp_path, config, records)
    first, *_, last = log_of(tmp_path / "model")
    assert first["loss"] == math.log(2)
    assert last["loss"] < 0.5
    assert not (tmp_path / "model/adapter").exists()
    before, after = (load_file(f / "model.safetensors") for f in (init, tmp_path / "model"))
    assert after["score.weight"].abs().max() > 0
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(before[name], after[name])
    assert torch.equal(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        theirs = [model(input_ids=torch.tensor([ids])).logits.item() for ids in sequences(records)]
    assert scores_of(tmp_path / "model", records, tmp_path) == pytest.approx(theirs, abs=1e-5)


# --- the folder and its padding token ------------------------------------------------------------


def with_tokenizer(folder: Path, pad: str | None) -> Path:
    model_folder(folder)
    tokenizer = word_tokenizer()
    if pad is not None:
        tokenizer.pad_token = pad
    tokenizer.save_pretrained(folder)
    return folder


def ending(records: list[dict], token: int) -> list[dict]:
    sides = ("chosen_ids", "rejected_ids")
    return [{**r, **{side: [*r[side], token] for side in sides}} for r in records]


def padded_alike(folder: Path, records: list[dict], work: Path) -> None:
    """That a batch padded by the folder's tokenizer, on either side, is scored as we score it."""
    ours = scores_of(folder, records, work)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    for side in ("right", "left"):
        tokenizer = AutoTokenizer.from_pretrained(folder, padding_side=side)
        assert tokenizer.pad_token_id == model.config.pad_token_id is not None
        batch = tokenizer.pad({"input_ids": sequences(records)}, return_tensors="pt")
        with torch.no_grad():
            theirs = model(**batch).logits[:, 0].tolist()
        assert ours == pytest.approx(theirs, abs=1e-5), side


def test_a_tokenizer_that_pads_with_its_end_of_turn_gets_another_padding_token(
    tmp_path: Path,
) -> None:
    folder = with_tokenizer(tmp_path / "init", pad="<end>")
    end = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("<end>")
    records = ending(pair_records(8), end)
    trained(folder, tmp_path, records=records)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").pad_token != "<end>"
    padded_alike(tmp_path / "model", records, tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").eos_token == "<end>"


def test_what_is_no_reward_model_is_refused(init: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no reward model: it lacks score\.weight"):
        load_reward_model(init, Dtype.float32)
    three = tmp_path / "three"
    AutoModelForSequenceClassification.from_pretrained(init, num_labels=3).save_pretrained(three)
    with pytest.raises(ValueError, match="with 3 labels; a reward model has 1"):
        start_reward_model(three, Dtype.float32)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_reward_model(tmp_path / "nowhere", Dtype.float32)


@pytest.mark.parametrize("name", ["score.bias", "score.0.weight"])
def test_a_head_that_transformers_would_read_in_part_is_refused(init: Path, name: str) -> None:
    file = init / "model.safetensors"
    save_file(load_file(file) | {name: torch.ones(1)}, file, {"format": "pt"})
    for load in (load_reward_model, start_reward_model):
        with pytest.raises(ValueError, match=rf"has {name}, and a reward model's head"):
            load(init, Dtype.float32)


# --- killed, and on several ranks ----------------------------------------------------------------


KILLED_AT, SAVED = 3, 2
"""The step after which a run is killed, and the one of its last checkpoint."""


def run_killed(init: Path, work: Path, killed_at: int | None) -> None:
    torch.set_num_threads(1)

    def on_progress(done: int, total: int, metrics: object) -> None:
        with (work / "done").open("a") as file:
            file.write(f"{done}\n")
        if done == killed_at:
            kill_this_process(once_there=work / f"scratch/checkpoints/step-{SAVED:06d}")

    config = replace(CONFIG, max_steps=6, checkpoint_every_steps=2, eval_every_steps=2)
    config = replace(config, keep_best="eval_loss")
    place = Workplace(work / "model", work / "scratch", on_progress=on_progress)
    run_reward_training(init, pair_records(12), config, place, pair_records(4, seed=1))


def test_a_killed_run_ends_with_the_bytes_of_an_undisturbed_one(tmp_path: Path) -> None:
    init = with_tokenizer(tmp_path / "init", pad="<end>")

    def run(work: Path, killed_at: int | None) -> None:
        work.mkdir(exist_ok=True)
        ended = exit_code(run_killed, init, work, killed_at)
        assert ended == (0 if killed_at is None else -signal.SIGKILL)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(whole, None)
    run(killed, KILLED_AT)
    (killed / "done").unlink()
    run(killed, None)
    first, *_ = (killed / "done").read_text().split()
    assert int(first) == SAVED + 1
    assert folder_bytes(killed / "model") == folder_bytes(whole / "model")


def on_ranks(init: Path, work: Path, lora: bool) -> None:
    with together() as ranks:
        config = replace(CONFIG, lora=LoraConfig(r=4) if lora else None)
        place = Workplace(work / "model", work / "scratch", ranks=ranks)
        run_reward_training(init, pair_records(12), config, place)
        ranks.wait()
        place = Workplace(work / "scores", work / "scores-scratch", ranks=ranks)
        scored, _ = score_pairs(pair_records(12), work / "model", RewardScoring(), place)
        if ranks.is_first:
            (work / "scores.json").write_text(json.dumps([r["scores"] for r in scored]))


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_two_ranks_train_and_score_what_one_does(init: Path, tmp_path: Path, lora: bool) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    on_ranks(init, tmp_path / "one", lora)
    assert run_ranks(on_ranks, init, tmp_path / "two", lora) == [0, 0]
    one, two = (log_of(tmp_path / name / "model") for name in ("one", "two"))
    for step, other in zip(one, two, strict=True):
        assert step == pytest.approx(other, rel=1e-4, abs=1e-4)
    scores = [json.loads((tmp_path / name / "scores.json").read_text()) for name in ("one", "two")]
    assert torch.tensor(scores[0]).flatten().tolist() == pytest.approx(
        torch.tensor(scores[1]).flatten().tolist(), abs=1e-3
    )
    files = [sorted(folder_bytes(tmp_path / name / "model")) for name in ("one", "two")]
    assert files[0] == files[1]
