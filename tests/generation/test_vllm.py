"""vLLM as an engine: its HTTP interface by a stand-in, and itself where it is installed."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from http_answers import Asked, answering
from tiny_models import SIZES, llama, model_folder
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from pipeline.dag.canonical import identity
from steps.generation.engine import Finish, Finished, Request
from steps.generation.remote.syncing import SyncError
from steps.generation.remote.vllm_client import from_vllm, seed_of, to_vllm
from steps.generation.remote.vllm_config import Vllm
from steps.generation.slots import SlotEngine
from steps.models.config import Dtype
from steps.models.folders import load_model

ASKED = [Request(f"row {n}", k, (3, 4 + n), 6, 1.0, (2,)) for n in range(4) for k in range(2)]
CONFIG = Vllm(version="0.33.0", dtype=Dtype.float32, addresses=("http://x",), concurrent=3)


def seeded(seed: int) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return llama(tied=False).eval()


class StandIn:
    """Speaks vLLM's HTTP interface, with a model of ours behind it."""

    def __init__(self) -> None:
        self.engine = SlotEngine(seeded(9), "w")
        self.named = "default"
        self.keeps: str | None = None
        self.asked: list[dict[str, Any]] = []
        self.busy = threading.Lock()
        self.info: dict[str, Any] = {
            "vllm_config": {"model_config": {"dtype": "torch.float32"}},
            "vllm_env": {"VLLM_BATCH_INVARIANT": False},
        }
        self.damage: dict[str, Any] = {}

    def __call__(self, asked: Asked, content: Any) -> None:
        with self.busy:
            asked.say(getattr(self, asked.path.partition("?")[0].rpartition("/")[2])(content))

    def version(self, content: Any) -> Any:
        return {"version": "0.33.0"}

    def server_info(self, content: Any) -> Any:
        return self.info

    def weight_info(self, content: Any) -> Any:
        return {"weight_version": self.named}

    def update_weight_version(self, content: Any) -> Any:
        self.named = content["new_version"]
        return {"success": True, "new_version": self.named}

    def reset_prefix_cache(self, content: Any) -> Any:
        return b""

    def collective_rpc(self, content: Any) -> Any:
        assert content["method"] == "reload_weights"
        new = load_model(Path(content["kwargs"]["weights_path"])).state_dict()
        if self.keeps is not None:
            new[self.keeps] = self.engine.model.state_dict()[self.keeps].clone()
        self.engine.update_weights(new, "w")
        return {"results": [None]}

    def generate(self, content: Any) -> Any:
        self.asked.append(content)
        told = content["sampling_params"]
        assert told["ignore_eos"]
        assert told["logprobs"] == 0
        request = Request(
            "stand-in",
            0,
            tuple(content["token_ids"]),
            told["max_tokens"],
            told["temperature"],
            tuple(told["stop_token_ids"]),
            (told["seed"],),
            told["top_p"],
            told["top_k"],
            told["min_p"],
        )
        (drawn,) = self.engine.sample([request], "w")
        return {**told_by_vllm(drawn), **self.damage}


def told_by_vllm(drawn: Finished) -> Any:
    content = [
        {"token_id": token, "logprob": logp, "rank": 1, "top_logprobs": []}
        for token, logp in zip(drawn.ids, drawn.logps, strict=True)
    ]
    choice = {
        "index": 0,
        "logprobs": {"content": content},
        "finish_reason": str(drawn.finish),
        "token_ids": list(drawn.ids),
        "weight_versions": [{"version": drawn.weights, "start": 0, "end": len(drawn.ids)}],
    }
    return {"request_id": "1", "choices": [choice], "prompt_logprobs": None}


@contextmanager
def vllm(stand_in: StandIn) -> Iterator[Vllm]:
    with answering(stand_in) as address:
        yield replace(CONFIG, addresses=(address,))


def draw(config: Vllm, model: PreTrainedModel) -> list[Finished]:
    choice = config.connect(model, ASKED, "w", 64, 2048)
    return sorted(choice.engine.sample(ASKED, "w"), key=lambda done: (done.row, done.k))


# --- what is asked and what is answered -----------------------------------------------------------


def test_what_a_server_draws_is_ids_with_logps_and_the_digest_of_its_weights() -> None:
    stand_in = StandIn()
    with vllm(stand_in) as config:
        choice = config.connect(seeded(0), ASKED, "w", 64, 2048)
        assert choice.described() == {
            "engine": "vllm",
            "batch_invariant": False,
            "dtype": "float32",
            "version": "0.33.0",
            "recorded": True,
        }
        stand_in.asked.clear()
        drawn = {(done.row, done.k): done for done in choice.engine.sample(ASKED, "w")}
    assert drawn.keys() == {(request.row, request.k) for request in ASKED}
    assert {done.weights for done in drawn.values()} == {"w"}
    seeds = {content["sampling_params"]["seed"] for content in stand_in.asked}
    assert len(seeds) == len(ASKED)
    assert {content["cache_salt"] for content in stand_in.asked} == {"w"}
    known = SlotEngine(seeded(0), "w")
    for content in stand_in.asked:
        seed = content["sampling_params"]["seed"]
        (request,) = (one for one in ASKED if seed_of(one) == seed)
        assert content == to_vllm(request, "w")
        (own,) = known.sample([replace(request, row="stand-in", k=0, seed=(seed,))], "w")
        assert drawn[request.row, request.k] == replace(own, row=request.row, k=request.k)


def test_a_draw_has_a_seed_of_its_own_that_a_signed_number_holds() -> None:
    request = ASKED[0]
    others = [replace(request, k=1), replace(request, row="x"), replace(request, seed=(0, 1))]
    seeds = {seed_of(one) for one in (request, *others)}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)


def answer_of(**changes: Any) -> Any:
    told = told_by_vllm(Finished("row 0", 0, (5, 2), (-1.0, -0.5), Finish.stop, "w"))
    told["choices"][0] |= changes
    return told


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({}, "it is no completion"),
        ({"choices": [1, 2]}, "it is no completion"),
        (answer_of(finish_reason="abort"), "it is no completion"),
        (answer_of(logprobs=None), "it is no completion"),
        (answer_of(token_ids=[5, 6, 2]), "the logps are those of other tokens"),
        (answer_of(token_ids=[2, 5]), "the logps are those of other tokens"),
        (answer_of(weight_versions=[{"version": "v", "start": 0, "end": 2}]), "by the weights"),
        (answer_of(finish_reason="length"), "says that it ended by length"),
        (answer_of(logprobs={"content": [{"logprob": -9999.0}] * 2}), "a token has no logp"),
        (answer_of(logprobs={"content": [{"logprob": -1.0}]}), "1 logps for 2 tokens"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_is_refused(told: Any, message: str) -> None:
    assert from_vllm(answer_of(), ASKED[0], "w").ids == (5, 2)
    with pytest.raises(ValueError, match=message):
        from_vllm(told, ASKED[0], "w")


# --- weights --------------------------------------------------------------------------------------


def test_a_server_that_says_yes_and_keeps_the_old_head_is_caught() -> None:
    stand_in = StandIn()
    stand_in.keeps = "lm_head.weight"
    caught = pytest.raises(SyncError, match="has accepted the weights w and draws with others")
    with vllm(stand_in) as config, caught:
        draw(config, seeded(0))


# --- what a server is -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"version": "0.32.0"}, "has version=0.33.0, and the config says 0.32.0"),
        ({"dtype": Dtype.bfloat16}, "has dtype=float32, and the config says bfloat16"),
        ({"batch_invariant": True}, "has batch_invariant=False, and the config says True"),
    ],
)
def test_a_server_that_is_not_what_the_config_says_is_refused(
    settings: dict[str, Any], message: str
) -> None:
    with vllm(StandIn()) as config, pytest.raises(ValueError, match=message):
        replace(config, **settings).connect(seeded(0), ASKED, "w", 64, 2048)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"temperature": 0.7}, "drawn with temperature 0.7; start it with --logprobs-mode"),
        ({"top_k": 5}, "drawn with top_p, top_k or min_p; start it with --logprobs-mode"),
        ({"temperature": 0.6, "top_p": 0.9, "min_p": 0.1}, "temperature 0.6 and top_p, top_k or"),
    ],
)
def test_logps_of_another_distribution_need_a_server_that_gives_these(
    settings: dict[str, Any], told: str
) -> None:
    asked = [replace(request, **settings) for request in ASKED]
    stand_in, model = StandIn(), seeded(0)
    with vllm(stand_in) as config:
        with pytest.raises(ValueError, match=told):
            config.connect(model, asked, "w", 64, 2048)
        stand_in.info["vllm_config"]["model_config"]["logprobs_mode"] = "processed_logprobs"
        engine = config.connect(model, asked, "w", 64, 2048).engine
        stand_in.asked.clear()
        drawn = {(done.row, done.k): done for done in engine.sample(asked, "w")}
    known = SlotEngine(model, "w")
    for request in asked:
        own_seed = replace(request, row="stand-in", k=0, seed=(seed_of(request),))
        (own,) = known.sample([own_seed], "w")
        assert drawn[request.row, request.k].ids == own.ids
        assert drawn[request.row, request.k].logps == own.logps


def test_the_engine_its_version_and_dtype_are_identity_and_where_it_runs_is_not() -> None:
    moved = replace(CONFIG, addresses=("http://y",), folder="/else", concurrent=1, patience=1.0)
    assert identity(moved, "engine") == identity(CONFIG, "engine")
    for other in ({"version": "1"}, {"dtype": Dtype.bfloat16}, {"batch_invariant": True}):
        assert identity(replace(CONFIG, **other), "engine") != identity(CONFIG, "engine")


# --- vLLM itself ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_vllm_takes_over_weights_and_draws_with_them(tmp_path: Path) -> None:
    installed = pytest.importorskip("vllm", reason="vLLM is not installed")
    config = LlamaConfig(**SIZES, head_dim=64, tie_word_embeddings=False)  # as its kernels need
    folder = model_folder(tmp_path / "policy", lambda: LlamaForCausalLM(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1"}
    arguments = [str(folder), "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    arguments += ["--enable-scale-out"]  # for tokens in and tokens out
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *arguments]
    with subprocess.Popen([*command, "--skip-tokenizer-init"], env=environment) as server:
        try:
            address = f"http://127.0.0.1:{port}"
            served = replace(CONFIG, version=installed.__version__, addresses=(address,))
            while server.poll() is None:
                try:
                    requests.get(f"{address}/health", timeout=5).raise_for_status()
                    break
                except requests.RequestException:
                    time.sleep(1)
            assert {done.weights for done in draw(served, load_model(folder))} == {"w"}
        finally:
            server.terminate()
