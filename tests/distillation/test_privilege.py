"""Self-distillation: the teacher is the student itself, and is shown more."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from byte_model import TEMPLATE, byte_tokenizer, write_byte_model
from step_output import Folder

from pipeline import Artifact, TemperError
from steps.add_privilege import add_privilege
from steps.checking.verdicts import Verdict
from steps.data.rows.jsonl import read_json_lines
from steps.data.rows.parquet import read_rows, write_rows
from steps.data.rows.rows import PromptRow
from steps.data.rows.tables import PROMPTS, to_record
from steps.data.tokens.encoding import save_tokenizer
from steps.data.tokens.token_tables import CONVERSATION_TOKENS
from steps.distillation.cached_teacher import read_teacher
from steps.distillation.config import Precision, TeacherConfig
from steps.generation.engine import Finish
from steps.losses.distillation.reverse_kl import ReverseKl
from steps.models.config import Dtype
from steps.models.folders import load_model
from steps.online.rollouts import Rollout, write_rollouts
from steps.online.selection import Best
from steps.scoring.examples import read_demonstrations
from steps.select_demonstrations import select_demonstrations
from steps.teacher_logprobs import teacher_logprobs
from steps.train_sft import train_sft
from steps.training.config import TrainConfig

EVERY = Best(least_reward=None, per_prompt=None)
EXACT = TeacherConfig(dtype=Dtype.float64, precision=Precision.float32, top_k=1000)
STEPS: Any = SimpleNamespace(
    select=select_demonstrations.function, privilege=add_privilege.function,
    teach=teacher_logprobs.function, train=train_sft.function,
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def recording(model: Path, tmp_path: Path) -> Path:
    """Two answers to each of two questions."""
    tokenizer, drawn = byte_tokenizer(), list[Rollout]()
    rows = [PromptRow(row, ({"role": "user", "content": f"What is {row}?"},), "42") for row in "ab"]
    for row in rows:
        prompt = tokenizer(f"<|user|>What is {row.row}?<|end|><|assistant|>").input_ids
        for k, text in enumerate(("It is 41.", "42")):
            ids = tuple(tokenizer(f"{text}<|end|>").input_ids)
            said: Any = {"verdict": Verdict.right, "reason": f"off by {1 - k}"}
            masks, logps = (True,) * len(ids), (-1.0,) * len(ids)
            drawn.append(
                Rollout(row.row, k, tuple(prompt), ids, masks, logps, Finish.stop, "w",
                        rewards={"boxed": float(k)}, **said)
            )  # fmt: skip
    folder = tmp_path / "recording"
    write_rollouts(folder, drawn)
    write_rows(folder / "prompts-00000.parquet", PROMPTS, map(to_record, rows))
    save_tokenizer(model, folder)
    return folder


def made(step: Callable[..., Any], folder: Path, *given: Any, **named: Any) -> Any:
    step(Folder(folder), *given, **named)
    return Artifact(folder, "", "")


def test_the_teacher_reads_the_same_answers_behind_more(
    recording: Path, model: Path, tmp_path: Path
) -> None:
    drawn, student = Artifact(recording, "", ""), Artifact(model, "", "")
    own = made(STEPS.select, tmp_path / "own", drawn, EVERY)
    template = "{prompt} Hint: {answer}, {feedback}"
    told = made(STEPS.privilege, tmp_path / "told", drawn, student, template=template)
    ours, theirs = (read_demonstrations(read_rows(of.path / "tokens-00000.parquet"), 10**6)
                    for of in (own, told))  # fmt: skip
    assert [g.row for g in ours] == [g.row for g in theirs] == ["0/a/1", "0/a/0", "0/b/1", "0/b/0"]
    assert [g.responses for g in ours] == [g.responses for g in theirs]
    said = byte_tokenizer().decode(list(theirs[3].prompt_ids))
    assert said == "<|user|>What is b? Hint: 42, off by 1<|end|><|assistant|>"

    scores = made(STEPS.teach, tmp_path / "scores", own, student, EXACT, told)
    blind = made(STEPS.teach, tmp_path / "blind", own, student, EXACT)
    teacher, loaded = read_teacher(scores.path), load_model(model, Dtype.float64)
    for group, seen in zip(ours, theirs, strict=True):
        ids: Any = torch.tensor([[*seen.prompt_ids, *seen.responses[0].ids]])
        with torch.no_grad():
            logps = loaded(ids).logits[0].double().log_softmax(-1)[len(seen.prompt_ids) - 1 : -1]
        expected = logps.gather(1, torch.tensor(seen.responses[0].ids)[:, None])[:, 0]
        torch.testing.assert_close(teacher.logps_of([group]), expected, rtol=0, atol=1e-6)

    config = TrainConfig(batch_size=4, dtype=Dtype.float64)
    logs = list[dict[str, float]]()
    for known in (scores, blind):
        of = made(STEPS.train, tmp_path / f"of-{known.path.name}", own, student, config,
                  loss=ReverseKl(), teacher=known)  # fmt: skip
        logs += read_json_lines(of.path / "metrics.jsonl")
    assert logs[0]["loss/divergence"] > 1e-5
    assert logs[1]["loss/divergence"] == pytest.approx(0, abs=1e-9)  # it teaches itself nothing


def test_what_does_not_fit_is_one_sentence(recording: Path, model: Path, tmp_path: Path) -> None:
    drawn, student = Artifact(recording, "", ""), Artifact(model, "", "")

    def add(template: str, tokenizer: Artifact = student) -> None:
        made(STEPS.privilege, tmp_path / "told", drawn, tokenizer, template=template)

    with pytest.raises(TemperError, match=r"template must have \{answer\} or \{feedback\}"):
        add("{prompt}")
    other = Artifact(write_byte_model(tmp_path / "other"), "", "")
    byte_tokenizer(template=TEMPLATE.replace("<|assistant|>", "")).save_pretrained(other.path)
    with pytest.raises(TemperError, match="row 'a': this tokenizer and its chat template write"):
        add("{prompt} {answer}", other)
    rows = [PromptRow(row, ({"role": "user", "content": f"What is {row}?"},)) for row in "ab"]
    write_rows(recording / "prompts-00000.parquet", PROMPTS, map(to_record, rows))
    with pytest.raises(TemperError, match="row 'a', completion 1, has no answer, which the templ"):
        add("{prompt} {answer}")

    own = made(STEPS.select, tmp_path / "own", drawn, EVERY)
    records = read_rows(own.path / "tokens-00000.parquet")
    last = records[3]["input_ids"]
    other_ids = {**records[3], "input_ids": [*last[:-1], 9]}
    wrong: list[tuple[str, list[dict[str, Any]]]] = [
        ("row '0/b/0' is not at the same place", records[:3]),
        ("row '0/a/1' is not at the same place", records[::-1]),
        ("row '0/b/0' has other answer tokens", [*records[:3], other_ids]),
    ]  # fmt: skip
    for number, (told, changed) in enumerate(wrong):
        folder = tmp_path / f"context-{number}"
        write_rows(folder / "tokens-00000.parquet", CONVERSATION_TOKENS, changed)
        with pytest.raises(ValueError, match=told):
            STEPS.teach(Folder(tmp_path / "out"), own, student, EXACT, Artifact(folder, "", ""))
    folder = tmp_path / "twice"
    twice = [records[0], {**records[0], "row": "again"}]
    write_rows(folder / "own/tokens-00000.parquet", CONVERSATION_TOKENS, twice)
    longer = {n: [v[0], *v] if isinstance(v, list) else v for n, v in twice[1].items()}
    longer["mask"][0] = False
    write_rows(folder / "told/tokens-00000.parquet", CONVERSATION_TOKENS, [records[0], longer])
    both = (Artifact(folder / name, "", "") for name in ("own", "told"))
    with pytest.raises(ValueError, match="'0/a/1' and 'again' are the same tokens in two contexts"):
        STEPS.teach(Folder(tmp_path / "out"), next(both), student, EXACT, next(both))
