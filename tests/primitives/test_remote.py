"""Loops and steps that train on a server of Tinker's API, beside the same ones here."""

import asyncio
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tinker_servers
import torch
from families import FAMILIES, built
from tiny_models import demonstration_records, log_of, model_folder, pair_records, word_tokenizer
from torch import Tensor

from steps.models.call_queue import PoisonedError
from steps.models.config import Dtype, LoraConfig
from steps.models.folders import load_model
from steps.models.workplace import Workplace
from steps.primitives import remote
from steps.primitives.local import Local
from steps.primitives.remote import Remote
from steps.scoring.reference import run_reference
from steps.tinker_backend import tinker_trainer
from steps.tinker_backend.tinker_choice import TinkerTraining
from steps.training.config import DpoConfig, OptimizerConfig, Schedule, TrainConfig
from steps.training.recipes import run_dpo, run_sft

ADAM = OptimizerConfig(
    1e-3, Schedule.constant, adam_beta2=0.95, adam_epsilon=1e-12, max_grad_norm=None
)
VOCABULARY = 48


def batch(step: int) -> dict[str, Tensor]:
    ids = torch.randint(VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(step))
    mask = torch.ones(3, 8)
    mask[0, :2] = mask[1, 5:] = 0
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:], "loss_mask": mask}


def nll(logps: Tensor, labels: Tensor, loss_mask: Tensor) -> Tensor:
    return -(logps * loss_mask).sum() / loss_mask.sum()


def nll_of_logits(logits: Tensor, labels: Tensor, loss_mask: Tensor) -> Tensor:
    logps = logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    return nll(logps, labels, loss_mask)


def loop(client: Local, steps: range) -> list[float]:
    """Two batches accumulate for each step."""
    losses = []
    for step in steps:
        found = [client.forward_backward(batch(2 * step + part)) for part in range(2)]
        losses += [one.result()["loss"] for one in found]
        assert client.optim_step().result()["step"] == step + 1
    return losses


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = model_folder(tmp_path_factory.mktemp("base") / "model", lambda: built("qwen3"))
    config = json.loads((folder / "config.json").read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]  # as transformers 4 writes it
    (folder / "config.json").write_text(json.dumps(config))
    word_tokenizer().save_pretrained(folder)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer |= {"tokenizer_class": "PreTrainedTokenizerFast", "extra_special_tokens": {}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.fixture(scope="module", params=["stand-in", pytest.param("skyrl", marks=pytest.mark.slow)])
def address(
    request: pytest.FixtureRequest, base: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str | None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "stand-in":
            for module in (remote, tinker_trainer):
                patch.setattr(module, "Wire", tinker_servers.StandIn)
            yield None
            return
        if not tinker_servers.PYTHON:
            pytest.skip("TEMPER_TINKER_PYTHON names no interpreter with skyrl-tx")
        pytest.importorskip("tinker", reason="the extra temper-ml[tinker] is not installed")
        patch.setenv("TINKER_API_KEY", "tml-none")
        with tinker_servers.server(base, tmp_path_factory.mktemp("server") / "work") as found:
            yield found


def local(base: Path, directory: Path) -> Local:
    from steps.models.adapters import add_adapter

    model = load_model(base, Dtype.float32)
    add_adapter(model, LoraConfig(r=4), seed=0)
    return Local(model, ADAM, nll_of_logits, directory=directory)


def test_a_loop_goes_the_same_way_here_and_there(
    base: Path, address: str | None, tmp_path: Path
) -> None:
    there: dict[str, Any] = {"rank": 4, "address": address, "patience": 500}
    client = Remote(str(base), ADAM, nll, directory=tmp_path / "there", **there)
    here = loop(local(base, tmp_path / "here"), range(6))
    begun = loop(client, range(3))
    assert begun[:2] == pytest.approx(here[:2], abs=1e-4)
    if address is None:  # a server draws other adapters
        assert begun == pytest.approx(here[:6], abs=1e-4)
    metadata = json.loads((client.save_checkpoint(3, {}).result() / "metadata.json").read_text())
    onwards = loop(client, range(3, 6))
    resumed = Remote(str(base), ADAM, nll, directory=tmp_path / "there", **there)
    assert resumed.load_checkpoint().result() == metadata
    assert loop(resumed, range(3, 6)) == pytest.approx(onwards, abs=1e-5)
    assert min(onwards) < min(begun)
    [[one, _]] = client.sample([[1, 2, 3]], 2, max_tokens=4, temperature=1.0).result()
    assert 1 <= len(one.ids) == len(one.logps) <= 4

    named = Remote(str(base), ADAM, directory=tmp_path, **there)
    first = asyncio.run(_awaited(named))
    assert first / float(batch(0)["loss_mask"].sum()) == pytest.approx(here[0], abs=1e-4)
    assert named.forward_backward(batch(0)).result()["loss"] < first
    with pytest.raises(ValueError, match="one of cross_entropy"):
        named.forward_backward(batch(0), "another").result()
    with pytest.raises(PoisonedError, match="one of cross_entropy"):
        named.optim_step().result()
    for one in (client, resumed, named):
        one.close()


async def _awaited(client: Remote) -> float:
    found = await client.forward_backward(batch(0))
    assert "grad_norm" not in found | await client.optim_step()
    return found["loss"]


SETTINGS: dict[str, Any] = {
    "batch_size": 4,
    "max_steps": 6,
    "optimizer": ADAM,
    "lora": LoraConfig(r=4, merged=True),
    "checkpoint_every_steps": 2,
}


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_a_step_trains_on_a_server_as_it_does_here(
    base: Path, address: str | None, tmp_path: Path, method: str
) -> None:
    there = TinkerTraining(base_model=str(base), address=address, patience=500)

    def run(work: Path, **more: Any) -> dict[str, Any]:
        place = Workplace(work / "out", work / "scratch")
        if method == "sft":
            return run_sft(base, demonstration_records(12), TrainConfig(**SETTINGS, **more), place)
        config, records = DpoConfig(**SETTINGS, **more), pair_records(12)
        scored = Workplace(work / "reference", work / "scored")
        run_reference(base, records, config.reference(), scored)
        return run_dpo(base, records, work / "reference", config, place)

    run(tmp_path / "here")
    found = run(tmp_path / "there", backend=there)
    assert found["recorded"] is True
    assert "recorded" in found["notices"][-1]
    logs = [[line["loss"] for line in log_of(tmp_path / x / "out")] for x in ("here", "there")]
    assert logs[1][0] == pytest.approx(logs[0][0], abs=1e-4)
    if address is None:
        assert logs[1] == pytest.approx(logs[0], abs=1e-4)
    if method == "dpo":
        assert logs[1][0] == pytest.approx(math.log(2), abs=1e-4)
        assert all(loss < math.log(2) - 1e-3 for loss in logs[1][2:])
    here = load_model(tmp_path / "here" / "out", Dtype.float32).state_dict()
    saved = load_model(tmp_path / "there" / "out", Dtype.float32).state_dict()
    before = load_model(base, Dtype.float32).state_dict()
    for name, weight in saved.items():
        assert torch.equal(weight, before[name]) != ("proj" in name), name
    if address is None:
        assert all(torch.allclose(here[name], x, atol=1e-5) for name, x in saved.items())


def test_a_server_with_another_model_or_adapter_is_refused(
    base: Path, address: str | None, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"needs an adapter .*max_grad_norm=null, .*=1e-12"):
        TrainConfig(backend=TinkerTraining(base_model="any"))
    there = TinkerTraining(base_model=str(base), address=address, patience=500)
    config, records = TrainConfig(**SETTINGS, backend=there), demonstration_records(4)
    place = Workplace(tmp_path / "out", tmp_path / "scratch")
    few = replace(config, lora=LoraConfig(r=4, target_modules=["q_proj"]))
    with pytest.raises(ValueError, match=r"adapter of the server has .*=\(4, .* lora has None"):
        run_sft(base, records, few, place)
    other = model_folder(tmp_path / "other", FAMILIES["qwen3"], seed=1)
    with pytest.raises(ValueError, match="of the server is not that of"):
        run_sft(other, records, config, place)
