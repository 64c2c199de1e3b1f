"""Engines in other processes: the bits of this one, and weights that are shown and not believed."""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import torch
from http_answers import answering, listening
from safetensors.torch import save
from starlette.applications import Starlette
from tiny_models import llama, model_folder
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.dag.canonical import identity
from steps.generation.engine import Finished, Request, StaleWeightsError
from steps.generation.engine_config import OwnEngine
from steps.generation.remote.calling import Caller, EngineError
from steps.generation.remote.own_engine import TOKEN, OwnEngineClient, own_engine
from steps.generation.remote.syncing import (
    Probe,
    SyncedEngines,
    SyncError,
    probe_requests,
    scoring_with,
    sync_weights,
)
from steps.generation.slots import SlotEngine
from steps.models.folders import load_model
from steps.online.online_run import checked_by
from steps.scoring.scored_by import model_digest
from steps.serving.engine_app import engine_app
from steps.serving.served_answers import Turns

SECRET = "a token of the tests"
ASKED = [
    Request(f"row {n}", k, tuple(range(1, 3 + n)), 9, 1.0, (2,)) for n in range(5) for k in range(3)
]
CUT = [replace(request, temperature=0.7, top_p=0.8, top_k=6, min_p=0.01) for request in ASKED]


def seeded(seed: int, tied: bool = True) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return llama(tied=tied).eval()


def weights_of(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@contextmanager
def serving(engine: SlotEngine) -> Iterator[SimpleNamespace]:
    """The address and the port of a server of an engine."""
    app = Starlette(routes=[engine_app(engine, SECRET, Turns())])
    with listening(app) as port:
        yield SimpleNamespace(address=f"http://127.0.0.1:{port}", server_port=port)


def client(address: str, patience: float = 60.0, token: str = SECRET) -> OwnEngineClient:
    return OwnEngineClient(Caller(address, token, patience))


def probe_of(model: PreTrainedModel) -> Probe:
    return Probe(probe_requests(ASKED), scoring_with(model), torch.float32)


def by_place(drawn: Iterator[Finished]) -> dict[tuple[str, int], Finished]:
    return {(finished.row, finished.k): finished for finished in drawn}


# --- the same bits --------------------------------------------------------------------------------


def test_engines_elsewhere_draw_the_bits_of_this_process_with_each_version_of_the_weights() -> None:
    three, many = SlotEngine(seeded(9), "?", slots=3), SlotEngine(seeded(8), "?")
    with serving(three) as one, serving(many) as two:
        engines = [client(one.address), client(two.address)]
        for seed in (0, 1):
            model, name = seeded(seed), f"version {seed}"
            sync_weights(engines, weights_of(model), name, probe_of(model))
            here = by_place(SlotEngine(model, name, slots=5).sample(ASKED, name))
            assert by_place(engines[0].sample(ASKED, name)) == here
            few = by_place(SlotEngine(model, name, slots=5).sample(CUT, name))
            assert by_place(engines[1].sample(CUT, name)) == few != here
            synced = SyncedEngines(engines, probe_of(model))
            synced.update_weights(weights_of(model), name)
            assert by_place(synced.sample(ASKED, name)) == here


def test_a_folder_is_handed_over_by_its_digest(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "new", llama, seed=3)
    with serving(SlotEngine(seeded(9), "?")) as server:
        engine, model = client(server.address), load_model(folder)
        with pytest.raises(ValueError, match="holds the weights"):
            engine.update_weights(folder, "another digest")
        sync_weights([engine], folder, model_digest(folder), probe_of(model))
        assert engine.weights == model_digest(folder)


def test_completions_by_other_weights_are_refused() -> None:
    with (
        serving(SlotEngine(seeded(0), "old")) as server,
        pytest.raises(StaleWeightsError, match="'new' are asked for, and the engine has 'old'"),
    ):
        list(client(server.address).sample(ASKED, "new"))
    drawn_by_others = says({**GOOD, "weights": "old"}, {"done": 1})
    with answering(drawn_by_others) as address, pytest.raises(StaleWeightsError, match="'old'"):
        list(client(address).sample([ONE], "w"))


# --- weights that cannot be trusted ---------------------------------------------------------------


@pytest.mark.parametrize("torn", ["short", "changed"])
def test_torn_weights_are_refused_and_the_old_ones_stay(torn: str) -> None:
    with serving(SlotEngine(seeded(0), "old")) as server:
        before = by_place(client(server.address).sample(ASKED, "old"))
        headers = {"X-Weights": "new", "X-Digest": "0" * 64, "Authorization": f"Bearer {SECRET}"}
        if torn == "short":  # whoever sends has died in the middle
            with socket.create_connection(("127.0.0.1", server.server_port)) as line:
                told = "".join(f"{n}: {v}\r\n" for n, v in {**headers, "Content-Length": 9}.items())
                line.sendall(f"POST /engine/weights HTTP/1.1\r\n{told}\r\nhalf".encode())
        else:
            url = f"{server.address}/engine/weights"
            body = save({n: t for n, t in weights_of(seeded(1)).items() if n != "lm_head.weight"})
            assert requests.post(url, body, headers=headers).status_code == 422
        assert by_place(client(server.address).sample(ASKED, "old")) == before


class KeepsItsHead(SlotEngine):
    """Says that it has the new weights, and goes on with the old output head."""

    def update_weights(self, source: Path | Mapping[str, Tensor], weights: str) -> None:
        assert not isinstance(source, Path)
        head = {"lm_head.weight": self.model.state_dict()["lm_head.weight"].clone()}
        super().update_weights({**source, **head}, weights)


class KeepsEverything(SlotEngine):
    """Says that it has the new weights."""

    def update_weights(self, source: Path | Mapping[str, Tensor], weights: str) -> None:
        self._weights = weights


class KeepsItsFirstAnswers(SlotEngine):
    """Answers what it has answered before from there, as who keeps keys of old weights."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.answered: dict[Request, Finished] = {}

    def sample(self, requests: Any, weights: str) -> Iterator[Finished]:
        for request in requests:
            if request not in self.answered:
                (self.answered[request],) = super().sample([request], weights)
            yield replace(self.answered[request], weights=weights)


@pytest.mark.parametrize("liar", [KeepsItsHead, KeepsEverything, KeepsItsFirstAnswers])
def test_an_engine_that_says_yes_and_keeps_something_old_is_caught(liar: type[SlotEngine]) -> None:
    old, new = seeded(0, tied=False), seeded(1, tied=False)
    with serving(liar(seeded(0, tied=False), "old")) as server:
        engines = SyncedEngines([client(server.address)], probe_of(old))
        engines.update_weights(weights_of(old), "old again")
        asking = engines.scored_by(scoring_with(new))
        with pytest.raises(SyncError, match="has accepted the weights new and draws with others"):
            asking.update_weights(weights_of(new), "new")
        assert client(server.address).weights == "new"
        assert asking.weights == ""  # so whoever goes on hands them over, and compares, again
        with pytest.raises(StaleWeightsError):
            list(asking.sample(ASKED, "new"))


def test_in_a_run_engines_are_compared_with_the_trainer_s_scoring_of_what_they_drew() -> None:
    model = seeded(0, tied=False)

    class Trainer:
        """Scores groups as the one of a run."""

        def prepare(self, groups: Any) -> Any:
            self.groups = groups
            return groups

        def logps(self, groups: Any) -> Any:
            tokens = [
                torch.full((len(answer.ids),), float(group.prompt_ids[0]))
                for group in groups
                for answer in group.responses
            ]
            return SimpleNamespace(result=lambda: SimpleNamespace(tokens=tokens))

    trainer: Any = Trainer()
    own = SlotEngine(model, "w")
    assert checked_by(own, trainer) is own  # it draws with the trainer's own weights
    drawn = list(own.sample(ASKED, "w"))
    with serving(own) as server:
        engines = checked_by(SyncedEngines([client(server.address)], probe_of(model)), trainer)
        assert isinstance(engines, SyncedEngines)
        pairs = [(ASKED[finished.k % len(ASKED)], finished) for finished in drawn]
        scored = engines._probe.score(pairs)
    assert [len(one) for one in scored] == [len(finished.ids) for finished in drawn]
    assert [group.row for group in trainer.groups] == [request.row for request, _ in pairs]
    assert [one[0] for one in scored] == [request.prompt_ids[0] for request, _ in pairs]


# --- engines that fail ----------------------------------------------------------------------------


class FailsAfterTwo(SlotEngine):
    """Ends in the middle of an answer."""

    def sample(self, requests: Any, weights: str) -> Iterator[Finished]:
        for number, finished in enumerate(super().sample(requests, weights)):
            if number == 2:
                raise ConnectionResetError
            yield finished


def test_what_an_engine_finished_before_it_died_arrives_and_then_one_sentence() -> None:
    with serving(FailsAfterTwo(seeded(0), "w")) as server:
        arrived: list[Finished] = []
        with pytest.raises(EngineError, match=r"in the middle .* finished completions are kept"):
            arrived.extend(client(server.address).sample(ASKED, "w"))
        assert len(arrived) == 2


def says(*lines: Any, missing: int = 0) -> Any:
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return lambda asked, content: asked.say(body, missing=missing)


ONE = ASKED[0]
GOOD = {"row": "row 0", "k": 0, "ids": [5, 2], "logps": [-1.0, -0.5], "finish": "stop"}
GOOD["weights"] = "w"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (says(GOOD, missing=10), "in the middle"),
        (says({"done": 1}), "left 1 completions out"),
        (says({**GOOD, "k": 7}), "completion 7 of row 'row 0' was not asked for"),
        (says({**GOOD, "logps": [-1.0]}), "1 logps for 2 tokens"),
        (says({**GOOD, "logps": [-1.0, float("nan")]}), "no log-probability"),
        (says({**GOOD, "ids": [5, 6]}), "says that it ended by stop"),
        (says({**GOOD, "finish": "length"}), "says that it ended by length"),
        (says("hello"), "it is no completion"),
        (lambda asked, content: asked.say(b"nonsense"), "no JSON"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_is_one_sentence(answer: Any, told: str) -> None:
    with answering(answer) as address, pytest.raises(EngineError, match=told):
        list(client(address).sample([ONE], "w"))


# --- in place of the engine of this process -------------------------------------------------------


def test_an_engine_process_takes_the_place_of_this_one_only_if_it_draws_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TOKEN, SECRET)
    model = seeded(0)
    with serving(SlotEngine(seeded(5), "?", slots=3)) as server:
        config = OwnEngine(addresses=(server.address,))
        choice = config.connect(model, ASKED, "w", 64, 2048)
        assert choice.described() == OwnEngine().connect(model, ASKED, "w", 64, 2048).described()
        here = by_place(SlotEngine(model, "w").sample(ASKED, "w"))
        assert by_place(choice.engine.sample(ASKED, "w")) == here
        with pytest.raises(ValueError, match="dtype=float32 and this process dtype=float64"):
            config.connect(model.double(), ASKED, "w", 64, 2048)


def test_a_token_is_sent_to_this_machine_alone() -> None:
    with pytest.raises(ValueError, match="is not on this machine"):
        own_engine("http://example.org:8471")


def test_where_engines_run_is_no_part_of_what_is_asked_for() -> None:
    here, there = OwnEngine(), OwnEngine(("http://127.0.0.1:1",), patience=1.0)
    assert identity(here, "engine") == identity(there, "engine")
