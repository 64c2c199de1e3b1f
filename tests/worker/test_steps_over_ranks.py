"""Real steps over several ranks: evaluated, killed, told to leave."""

import itertools
import json
import os
import re
import signal
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rank_processes import run_ranks
from rich.console import Console
from step_output import Folder
from tiny_models import folder_bytes, model_folder, pair_records, token_files, word_tokenizer
from waiting import wait_until
from workers_here import instead_of_processes

from pipeline import Store, adopt, run
from pipeline.launchers.config import LauncherConfig, LocalConfig
from pipeline.running.session import advance
from pipeline.wire.spec import Pause
from steps.data.rows.parquet import read_rows
from steps.data.tokens.token_tables import PAIR_TOKENS
from steps.evaluate import evaluate
from steps.evaluation.config import EvaluateConfig
from steps.generation.config import SamplingConfig
from steps.kinds import Model, PairTokens, ReferenceLogps
from steps.models.ranks import together
from steps.models.workplace import Workplace, never
from steps.scoring.reference import read_reference, run_reference
from steps.train_dpo import train_dpo
from steps.train_sft import train_sft
from steps.training.config import DpoConfig, OptimizerConfig, TrainConfig
from steps.training.recipes import run_dpo, run_sft

CPU_ONLY = LauncherConfig(local=LocalConfig(gpus=0))
SETTINGS: dict[str, Any] = {
    "batch_size": 2,
    "epochs": 6,
    "optimizer": OptimizerConfig(learning_rate=1e-2),
    "checkpoint_every_seconds": None,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return with_tokenizer(model_folder(tmp_path / "policy"))


def with_tokenizer(folder: Path) -> Path:
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    records = [
        {
            **record,
            "prompt": [{"role": "user", "content": f"w{number} w{number + 1}"}],
            "chosen": [{"role": "assistant", "content": "w1"}],
            "rejected": [{"role": "assistant", "content": "w2"}],
        }
        for number, record in enumerate(pair_records(24))
    ]
    return token_files(tmp_path / "tokens", PAIR_TOKENS, records)


# --- scoring and sampling -------------------------------------------------------------------------


def evaluate_pairs(tokens: Path, model: Path, work: Path, baseline: Path | None) -> None:
    sampling = SamplingConfig(4, temperature=1.0, slots=2)
    config = EvaluateConfig(sample_prompts=5, sampling=sampling)
    before = None if baseline is None else Model(baseline, "", "")
    arguments: Any = (
        Folder(work),
        PairTokens(tokens, "", ""),
        Model(model, "", ""),
        config,
        before,
    )
    if metrics := evaluate.function(*arguments):
        (work / "returned.json").write_text(json.dumps(metrics))


@pytest.mark.slow
def test_an_evaluation_over_two_ranks_is_that_of_one(
    model: Path, tokens: Path, tmp_path: Path
) -> None:
    baseline, one, two = (tmp_path / name for name in ("baseline", "one", "two"))
    other = with_tokenizer(model_folder(tmp_path / "other", seed=1))
    evaluate_pairs(tokens, other, baseline, None)
    evaluate_pairs(tokens, model, one, baseline)
    assert run_ranks(evaluate_pairs, tokens, model, two, baseline) == [0, 0]
    for name in ("answers.jsonl", "summary.md"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert len((one / "answers.jsonl").read_text().splitlines()) == 5
    metrics = [json.loads((folder / "returned.json").read_text()) for folder in (one, two)]
    assert flat(metrics[0]) == pytest.approx(flat(metrics[1]), rel=1e-4, abs=1e-5)
    assert read_reference(one).scored_by == read_reference(two).scored_by


def flat(metrics: dict[str, Any]) -> dict[str, float]:
    found = {}
    for name, value in metrics.items():
        inner = value if isinstance(value, dict) else {"": value}
        found |= {f"{name} {key}": number for key, number in inner.items()}
    return found


# --- kills, and requests to leave -----------------------------------------------------------------


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """In the environment of every process that this test starts, and of no other."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TEMPER_TEST", mark := uuid.uuid4().hex)
    return mark


def processes(mark: str, module: str, environment: str = "") -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, variables = (
                (folder / "cmdline").read_bytes(),
                (folder / "environ").read_bytes(),
            )
        except OSError:
            continue
        is_ours = mark.encode() in variables and module.encode() in command.split(b"\0")
        if is_ours and environment.encode() in [b"", *variables.split(b"\0")]:
            found.append(int(folder.name))
    return found


def latest_step(store: Store) -> int:
    names = Path(store.root).glob("scratch/**/checkpoints/step-*/checkpoint.json")
    return max((int(name.parent.name.partition("-")[2]) for name in names), default=0)


def errors(store: Store) -> list[str]:
    """What the attempts of steps said that did not end well, in their order."""
    reports = Path(store.root).glob("attempts/train_*/**/report.json")
    found = [json.loads(path.read_text()) for path in sorted(reports, key=os.path.getmtime)]
    return [report["error"] for report in found if report["error"]]


def train(
    work: Path,
    model: Path,
    tokens: Path,
    config: TrainConfig,
    reference: Path,
    stopping: Callable[[], bool] = never,
) -> None:
    with together() as ranks:
        place = Workplace(work / "model", work / "scratch", ranks=ranks, stopping=stopping)
        if isinstance(config, DpoConfig):
            run_dpo(model, read_rows(tokens), reference, config, place)
        else:
            records = [
                {"row": r["row"], "prompt_ids": r["prompt_ids"], "response_ids": r["chosen_ids"]}
                for r in read_rows(tokens)
            ]
            run_sft(model, records, config, place)


def killed_in_step(number: int, work: Path) -> Callable[[], bool]:
    """What kills the second rank when a run asks for that time whether to stop, once the checkpoint
    before, which is written in the background, has its name."""
    asked = itertools.count(1)

    def stopping() -> bool:
        if next(asked) == number and os.environ["RANK"] == "1":
            wait_until(lambda: any(work.glob("scratch/**/step-*")))
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    return stopping


def train_until_killed(work: Path, *arguments: Any) -> None:
    train(work, *arguments, stopping=killed_in_step(8, work))


DISTURBED = DpoConfig(**SETTINGS, checkpoint_every_steps=5)


@pytest.fixture
def reference(model: Path, tokens: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "reference"
    place = Workplace(folder, tmp_path / "reference-scratch")
    run_reference(model, read_rows(tokens), DISTURBED.reference(), place)
    return folder


@pytest.mark.slow
def test_training_goes_on_to_the_bit_from_the_checkpoint_before_a_rank_was_killed(
    model: Path, tokens: Path, reference: Path, tmp_path: Path
) -> None:
    config = replace(DISTURBED, epochs=1)
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    assert run_ranks(train, plain, model, tokens, config, reference) == [0, 0]
    first, second = run_ranks(train_until_killed, killed, model, tokens, config, reference)
    assert first != 0
    assert second == -signal.SIGKILL
    assert [path.name for path in killed.glob("scratch/**/step-*")] == ["step-000005"]
    assert run_ranks(train, killed, model, tokens, config, reference) == [0, 0]
    assert folder_bytes(killed / "model") == folder_bytes(plain / "model")


@pytest.mark.attack
@pytest.mark.parametrize(
    "is_told_to_leave", [False, True], ids=["killed", "killed and told to leave"]
)
def test_a_step_whose_rank_is_killed_or_that_is_told_to_leave_ends_as_if_undisturbed(
    store: Store,
    console: Console,
    model: Path,
    tokens: Path,
    reference: Path,
    tmp_path: Path,
    mark: str,
    is_told_to_leave: bool,
) -> None:
    config = DISTURBED
    assert run_ranks(train, tmp_path / "undisturbed", model, tokens, config, reference) == [0, 0]

    loaded = []

    def disturb() -> None:
        wait_until(lambda: latest_step(store))
        (worker,) = processes(mark, "pipeline.worker.attempt")
        loaded.append(Path(f"/proc/{worker}/maps").read_text())
        os.kill(processes(mark, "pipeline.worker.rank", "RANK=1")[0], signal.SIGKILL)
        if not is_told_to_leave:
            return
        wait_until(lambda: not processes(mark, "pipeline.worker.rank"))
        reached = latest_step(store)
        wait_until(lambda: latest_step(store) > reached)
        os.kill(processes(mark, "pipeline.worker.attempt")[0], signal.SIGTERM)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    root = train_dpo(
        adopt(str(tokens), PairTokens),
        adopt(str(model), Model),
        adopt(str(reference), ReferenceLogps),
        config,
    ).on(processes=2, retries=1)
    (made,) = run([root], store, console=console, launcher=CPU_ONLY).values()
    disturber.join()

    content = made.path
    assert "libtorch" not in loaded[0], "who starts the ranks has imported what they need"
    assert made.manifest.provenance["packages"].keys() >= {"torch", "transformers"}
    killed, *left = errors(store)
    assert "rank 1 was killed" in killed
    assert len(left) == is_told_to_leave
    assert all(re.search(r"left after step \d+ of 72", error) for error in left)
    assert folder_bytes(content) == folder_bytes(tmp_path / "undisturbed/model")
    assert len((content / "metrics.jsonl").read_text().splitlines()) == 72


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.attack)])
def test_training_that_pauses_goes_on_to_the_bit(
    store: Store,
    console: Console,
    model: Path,
    tokens: Path,
    tmp_path: Path,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if count == 1:  # two are processes of their own
        instead_of_processes(monkeypatch)
    config = TrainConfig(**SETTINGS)
    codes = run_ranks(train, tmp_path / "plain", model, tokens, config, tmp_path, count=count)
    assert {*codes} == {0}
    root = train_sft(adopt(str(tokens), PairTokens), adopt(str(model), Model), config)
    root = root.on(processes=count)
    pauses = {root.fingerprint: Pause("loss", 5)}
    assert advance({"it": root}, store, pauses, console=console, launcher=CPU_ONLY) == {}
    assert latest_step(store) == 6
    made = run({"it": root}, store, console=console, launcher=CPU_ONLY)["it"]
    (left,) = errors(store)
    assert re.search(r"left after step 6 of \d+, of which there is a checkpoint", left)
    assert folder_bytes(made.path) == folder_bytes(tmp_path / "plain/model")
