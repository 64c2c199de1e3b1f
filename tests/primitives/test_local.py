"""Loops of a user's own on each backend: the same losses, checkpoints, errors and futures."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from places import REPOSITORY
from safetensors.torch import load_file
from torch import Tensor, nn

from steps.models.call_queue import PoisonedError
from steps.primitives.local import Local
from steps.training.config import OptimizerConfig

VOCABULARY, WIDTH = 11, 6
MUON = OptimizerConfig(1e-2, algorithm="muon", rates={"embed": 0.5})  # pyright: ignore[reportArgumentType]


class Model(nn.Module):
    """Predicts each token from the one before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("scale", torch.tensor(1.0))

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layers[0](self.embed(input_ids)))) * self.scale


def batch(number: int) -> dict[str, Tensor]:
    ids = torch.randint(VOCABULARY, (3, 5), generator=torch.Generator().manual_seed(number))
    mask = torch.ones(3, 4)
    mask[0, :2] = 0
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:], "loss_mask": mask}


def nll(logits: Tensor, labels: Tensor, loss_mask: Tensor) -> Tensor:
    logps = logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    return -(logps * loss_mask).sum() / loss_mask.sum()


def on_torch(optimizer: Any, directory: Path, backend: str = "torch", **settings: Any) -> Local:
    return Local(Model(), optimizer, nll, backend, directory, **settings)


def on_functional(optimizer: Any, directory: Path) -> Local:
    return on_torch(optimizer, directory, "functional")


def on_jax(optimizer: Any, directory: Path) -> Local:
    jax = pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")

    def model(weights: dict[str, Any], input_ids: Any) -> Any:
        hidden = jax.numpy.tanh(weights["embed.weight"][input_ids] @ weights["layers.0.weight"].T)
        return hidden @ weights["head.weight"].T

    def loss(logits: Any, labels: Any, mask: Any) -> Any:
        logps = jax.nn.log_softmax(logits)
        logps = jax.numpy.take_along_axis(logps, labels[..., None], -1)[..., 0]
        return -(logps * mask).sum() / mask.sum()

    weights = {name: p.detach().numpy() for name, p in Model().named_parameters()}
    return Local(model, optimizer, loss, "jax", directory, weights=weights)


BACKENDS = [on_torch, on_functional, on_jax]


def train(client: Local, numbers: range) -> list[float]:
    """Two batches accumulate for each step."""
    found = []
    for number in numbers:
        for part in range(2):
            found.append(client.forward_backward(batch(2 * number + part)).result()["loss"])
        client.optim_step()
    return found


@pytest.mark.parametrize("open_client", BACKENDS)
@pytest.mark.parametrize("pickled", [False, True])
def test_each_backend_goes_the_same_way_and_a_checkpoint_brings_all_of_it_back(
    open_client: Callable[..., Local], pickled: bool, tmp_path: Path
) -> None:
    expected = train(on_torch(MUON, tmp_path), range(6))
    client = open_client(MUON, tmp_path)
    first = train(client, range(3))
    folder = client.save_checkpoint(3, {"loss": first[-1]}, pickled).result()
    assert train(client, range(3, 6)) == pytest.approx(expected[6:], abs=1e-5)
    assert first == pytest.approx(expected[:6], abs=1e-5)
    names = ["model.safetensors", "optimizer.safetensors"]
    names = ["pytorch_model.bin", "optimizer.bin"] if pickled else names
    assert sorted(p.name for p in folder.iterdir()) == sorted(["metadata.json", *names])
    metadata = json.loads((folder / "metadata.json").read_text())
    assert folder.name == "step_0003"
    assert metadata["metrics"] == {"loss": first[-1]}
    assert metadata["weight_version"] == client.weight_version == 1

    resumed = open_client(MUON, tmp_path)
    assert resumed.load_checkpoint().result() == metadata
    assert resumed.weight_version == 1
    assert train(resumed, range(3, 6)) == train_again(client)
    ends, again = client.get_weights().result(), resumed.get_weights().result()
    assert all(torch.equal(ends[name], again[name]) for name in ends)
    resumed.load_weights({name: torch.zeros_like(x) for name, x in ends.items()})
    assert not any(x.any() for x in resumed.get_weights().result().values())
    for one in (client, resumed):
        one.close()


def train_again(client: Local) -> list[float]:
    client.load_checkpoint().result()
    return train(client, range(3, 6))


def test_optimizers_of_one_s_own_go_as_the_library_s_do(tmp_path: Path) -> None:
    def on_object(directory: Path) -> Local:
        model = Model()
        return Local(model, torch.optim.Adam(model.parameters(), 1e-2), nll, "torch", directory)

    expected = train(on_object(tmp_path), range(5))
    made = [on_torch(lambda given: torch.optim.Adam(given, 1e-2), tmp_path)]
    torchopt = pytest.importorskip("torchopt")
    made.append(on_functional(torchopt.adam(1e-2), tmp_path))
    optax = pytest.importorskip("optax")
    made.append(on_jax(optax.adam(1e-2), tmp_path))
    for client in made:
        assert train(client, range(5)) == pytest.approx(expected, abs=1e-5)
        client.save_checkpoint(5).result()
        before = train(client, range(5, 7))
        client.load_checkpoint().result()
        assert train(client, range(5, 7)) == before
        client.close()


def test_a_model_of_bfloat16_is_updated_in_float32_and_products_may_be_rounded(
    tmp_path: Path,
) -> None:
    expected = train(on_torch(MUON, tmp_path), range(4))
    mixed = on_torch(MUON, tmp_path, dtype=torch.bfloat16)
    assert train(mixed, range(4)) == pytest.approx(expected, abs=3e-2)
    assert mixed.get_weights().result()["head.weight"].dtype == torch.float32
    model = Model().to(torch.bfloat16)
    client = Local(model, torch.optim.SGD(model.parameters(), 1e-3), nll, "torch", tmp_path)
    train(client, range(3))
    client.save_checkpoint(1).result()
    masters = load_file(tmp_path / "step_0001/optimizer.safetensors")
    assert not torch.equal(masters["model/head.weight"], model.head.weight.float())
    for one in (mixed, client):
        one.close()


@pytest.mark.parametrize("open_client", BACKENDS)
def test_after_an_error_every_call_names_it(
    open_client: Callable[..., Local], tmp_path: Path
) -> None:
    client = open_client(MUON, tmp_path)
    failed = client.forward_backward(batch(0), lambda logits, labels, mask: logits.sum() / 0)
    later = client.optim_step()
    with pytest.raises(FloatingPointError, match="the loss is"):
        failed.result()
    for call in (lambda: later, client.get_weights, lambda: client.forward_backward(batch(0))):
        with pytest.raises(PoisonedError, match="FloatingPointError: the loss is"):
            call().result()
    client.close()


def test_results_may_be_awaited_under_asyncio_and_trio(tmp_path: Path) -> None:
    trio = pytest.importorskip("trio")
    client = on_torch(MUON, tmp_path)

    async def loop() -> dict[str, float]:
        result = await client.forward_backward(batch(0))
        return result | await client.optim_step(0.5)

    for number, run in enumerate((lambda: asyncio.run(loop()), lambda: trio.run(loop))):
        found = run()
        assert {"loss", "grad_norm", "lr", "step"} <= found.keys()
        assert (found["lr"], found["step"]) == (0.5, number + 1)
    client.close()


def test_temper_s_trainers_stand_behind_the_same_client(tmp_path: Path) -> None:
    """With packed groups, and a loss over the logps of tokens; frozen parts are in a checkpoint."""
    from tiny_models import llama, model_folder
    from token_groups import pairs

    from steps.losses.simpo import Simpo
    from steps.models.config import Dtype
    from steps.models.folders import load_model
    from steps.models.ranks import ALONE
    from steps.training.objectives import preference_objective
    from steps.training.trainer import build_trainer

    folder, groups = model_folder(tmp_path / "model", lambda: llama(tied=False)), pairs()
    config = OptimizerConfig(1e-3, rates={"embed_tokens": 0.0})
    loss = preference_objective(groups, Simpo()).batch_loss(range(len(groups)), None)
    trainers = [build_trainer(load_model(folder, Dtype.float32), 256, ALONE, config) for _ in "ab"]
    client, other = (Local(backend=trainer, directory=tmp_path) for trainer in trainers)
    packed = trainers[0].prepare(groups)
    first = client.forward_backward(packed, loss).result()
    assert {"loss", "grad_norm", "rewards/margins"} <= first.keys()
    assert client.optim_step().result()["lr"] == 1e-3
    client.save_checkpoint(1).result()
    other.load_checkpoint().result()
    weights = [one.get_weights().result() for one in (client, other)]
    assert "model.embed_tokens.weight" in weights[0]
    assert all(torch.equal(weights[1][name], x) for name, x in weights[0].items())
    second = [one.forward_backward(packed, loss).result() for one in (client, other)]
    assert second[0] == second[1] != first
    for one in (client, other):
        one.close()


def test_the_loop_of_the_page_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (REPOSITORY / "docs/primitives.md").read_text("utf-8")
    loop = page.partition("```python\n")[2].partition("```")[0]
    assert loop.count("\n") <= 40
    monkeypatch.chdir(tmp_path)
    exec(compile(loop, "primitives.md", "exec"), {})
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("step 50: loss ")
    assert float(last.split()[3].rstrip(",")) < 1
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step_0050",
        "step_0100",
    ]
