"""Online training with an engine in a process of its own: the bits of a run without one."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from online_bed import ASKED, END, even_share, rl
from openai import OpenAI
from rank_processes import start_command
from tiny_models import VOCABULARY, folder_bytes, model_folder
from waiting import HANGS_SECONDS

from steps.generation.choosing import EngineChoice
from steps.generation.engine import Request
from steps.generation.engine_config import EngineConfig, OwnEngine
from steps.generation.remote.calling import EngineError
from steps.generation.remote.own_engine import TOKEN
from steps.models.folders import load_model
from steps.models.workplace import Workplace
from steps.online.iteration_rollouts import Kept
from steps.online.iterations import Source
from steps.online.online_run import Folders, checked_by, run_online
from steps.online.recording import record
from steps.online.rollouts import read_rollouts
from steps.online.sampled import Sampled, current_weights, longest_examples
from steps.online.staleness import Earlier
from steps.serving.engine_process import engine as engine_command
from steps.training.trainer import Trainer

pytestmark = pytest.mark.slow  # a process imports torch for seconds


class EngineProcess:
    """``temper engine``, as somebody starts it in another terminal."""

    def __init__(self, model: Path, port: int = 0) -> None:
        words = [str(model), "--port", str(port), "--slots", "3"]
        read, write = os.pipe()
        self.process = start_command(
            engine_command, words, (0, write, 2), {TOKEN: "a token of the tests"}
        )
        os.close(write)
        with open(read) as printed:
            told = printed.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", told)
        if not found:
            self.kill()  # the end of the tests would wait for it
            raise AssertionError(told)
        self.address, self.port = found[0], int(found[1])

    def kill(self) -> None:
        self.process.kill()
        self.process.join(HANGS_SECONDS)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    folder = model_folder(tmp_path_factory.mktemp("engine") / "policy")
    for file in tiny_model.glob("*token*"):  # an engine refuses a folder that is not whole
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def started() -> Iterator[list[EngineProcess]]:
    processes: list[EngineProcess] = []
    yield processes
    for process in processes:
        process.kill()


@pytest.fixture
def engine(
    policy: Path, started: list[EngineProcess], monkeypatch: pytest.MonkeyPatch
) -> EngineProcess:
    """One that runs; an earlier test may have drawn with it, from other weights."""
    monkeypatch.setenv(TOKEN, "a token of the tests")
    if not started or not started[-1].process.is_alive():
        started.append(EngineProcess(policy))
    return started[-1]


def run(policy: Path, work: Path, drawn_by: EngineConfig, iterations: int = 2) -> Any:
    """An online run into ``work/out``; who draws in it."""
    config = rl(slots=8)
    place = Workplace(work / "out", work / "scratch")
    model = load_model(policy, config.dtype)
    choice = drawn_by.connect(model, ASKED.requests(config, 0), "", config.slots, 64)

    def source(trainer: Trainer, kept: Kept, _: Earlier) -> Source:
        drawing = checked_by(choice.engine, trainer)
        return Sampled(
            current_weights(trainer, policy, config),
            drawing,
            ASKED,
            config,
            even_share,
            kept,
            place,
        )

    examples = longest_examples(ASKED, config, VOCABULARY)
    run_online(Folders(policy), config, examples, source, iterations, place)
    return choice


def test_a_run_with_an_engine_process_ends_with_the_bits_of_a_run_without(
    policy: Path, engine: EngineProcess, tmp_path: Path
) -> None:
    run(policy, tmp_path / "here", OwnEngine())
    choice = run(policy, tmp_path / "there", OwnEngine((engine.address,)))
    assert isinstance(choice, EngineChoice)
    for part in ("out", "scratch/rollouts"):
        assert folder_bytes(tmp_path / "there" / part) == folder_bytes(tmp_path / "here" / part)
    drawn = read_rollouts(next((tmp_path / "there/scratch/rollouts").glob("iteration-000001")))
    assert len({rollout.weights for rollout in drawn}) == 1


def test_what_an_engine_drew_before_it_was_killed_is_kept_and_the_rest_is_drawn_again(
    policy: Path, engine: EngineProcess, tmp_path: Path
) -> None:
    model = load_model(policy)
    asked = [
        Request(f"row {n}", k, (3, 4, 5 + n), 20, 1.0, (END,)) for n in range(20) for k in (0, 1)
    ]
    config = OwnEngine((engine.address,))
    drawing = config.connect(model, asked, "w", 3, 64).engine
    killed = []

    def kill(done: int, total: int, metrics: Any) -> None:
        if done == 6 and not killed:
            killed.append(done)
            engine.kill()

    place = Workplace(tmp_path / "out", tmp_path / "scratch", on_progress=kill)
    with pytest.raises(EngineError, match="finished completions are kept"):
        record(drawing, asked, place)
    parts = tmp_path / "scratch" / "parts"
    kept = sum(len(list(read_rollouts(file))) for file in parts.glob("*.parquet"))
    assert 6 <= kept < len(asked)

    again = EngineProcess(policy, engine.port)
    try:
        counted: list[int] = []
        drawing = config.connect(model, asked, "w", 3, 64).engine
        place = Workplace(
            tmp_path / "out",
            tmp_path / "scratch",
            on_progress=lambda done, total, metrics: counted.append(done),
        )
        rollouts = record(drawing, asked, place)
    finally:
        again.kill()
    assert len(counted) == len(asked) - kept
    whole = OwnEngine().connect(model, asked, "w", 64, 64).engine
    alone = record(whole, asked, Workplace(tmp_path / "out", tmp_path / "alone"))
    assert [r.ids for r in rollouts] == [r.ids for r in alone]


def test_the_server_of_a_run_answers_openai_clients_and_takes_weights_from_its_owner_alone(
    policy: Path, engine: EngineProcess
) -> None:
    with OpenAI(base_url=f"{engine.address}/v1", api_key="none", max_retries=0) as client:
        (model,) = client.models.list()
        said = client.completions.create(model=model.id, prompt=[3, 4, 5], max_tokens=3)
        assert said.usage is not None
        assert said.usage.prompt_tokens == 3
    weights = f"{engine.address}/engine/weights"
    assert requests.post(weights, b"mine", headers={"X-Weights": "mine"}).status_code == 401
    assert requests.get(weights).status_code == 401
