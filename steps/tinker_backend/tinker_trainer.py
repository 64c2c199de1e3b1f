"""Training on a server: logps come from it, and gradients by these go to it.

groups → rows → logps [S]          the server's forward
logps → loss, d loss / d logps     here, in float64, as in every backend
d loss / d logps → gradient        the server, once a step, for all batches since the last one
gradient, rate → adapter           the server's AdamW
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from steps.models.call_queue import SerialQueue
from steps.models.ranks import Ranks
from steps.models.sharded_tensors import Stored, Whole
from steps.scoring.examples import TokenGroup
from steps.scoring.logps import TokenLogps, detached
from steps.scoring.packing import lengths_of
from steps.scoring.reference import Reference
from steps.scoring.scored_by import ScoredBy
from steps.scoring.scorer import Batch, Logps
from steps.tinker_backend.tinker_choice import TinkerTraining
from steps.tinker_backend.tinker_wire import Row, Wire
from steps.training.config import OptimizerConfig, TrainConfig
from steps.training.policy import Role, TorchPolicy
from steps.training.run import START_TOLERANCE
from steps.training.trainer import BatchLoss, StepResult, Trainer, step_result, values_by_group

_PATH = "path"
_COMPARED = 2
"""How many groups, the shortest ones, show that a server has the model of a folder."""


class TinkerUpdates:
    """The adapter on a server and its optimiser, as `steps.training.trainer.Updates`. Norms of
    gradients are not known: nan.

    A state is the path under which the server keeps it, as bytes.
    """

    def __init__(self, wire: Wire, optimizer: OptimizerConfig) -> None:
        self._wire, self._optimizer, self.rate = wire, optimizer, optimizer.learning_rate
        self._rows: list[Row] = []
        self._logps: list[Tensor] = []
        self._gradients: list[Tensor] = []
        self.is_named = False

    def add(
        self, rows: Sequence[Row], logps: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> None:
        """Add the gradient of a loss by the logps of rows, [T] each, to that of the next step."""
        self._rows += rows
        self._logps += logps
        self._gradients += gradients

    def gradient_norm(self) -> float:
        return torch.nan

    def step(self, rate: float | None) -> float:
        if self._rows and self.is_named:
            raise ValueError("a step has a loss by its name and one of your own; make it two steps")
        if not self._rows and not self.is_named:
            raise RuntimeError("no gradient has reached the adapter")
        if self._rows:
            self._wire.add_gradient(self._rows, self._logps, self._gradients)
        self._rows, self._logps, self._gradients, self.is_named = [], [], [], False
        self.rate = self.rate if rate is None else rate
        self._wire.step(self._optimizer, self.rate)
        return torch.nan

    def state(self) -> dict[str, Tensor]:
        return {_PATH: torch.tensor(list(self._wire.save().encode()), dtype=torch.uint8)}

    def load_state(self, tensors: Mapping[str, Whole]) -> None:
        self.load_weights(tensors)

    def load_weights(self, weights: Mapping[str, Whole]) -> None:
        if _PATH not in weights:
            raise ValueError("a server takes only weights that it keeps: load a checkpoint")
        self._wire.load(bytes(weights[_PATH][...].tolist()).decode())

    def weights(self) -> dict[str, Tensor]:
        """By the names that the parameters have in a model with the adapter."""
        return {_in_model(name): weight for name, weight in self._wire.adapter()[0].items()}


class TinkerScorer:
    """Scores with the adapter on a server, as `steps.scoring.scorer.Scorer`."""

    def __init__(self, wire: Wire) -> None:
        self.queue, self._wire = SerialQueue(), wire

    def prepare(self, groups: Sequence[TokenGroup], noise: int = 0) -> Batch:
        return Batch(tuple(groups), (), (), noise)

    def logps(self, batch: Batch) -> Future[Logps]:
        return self.queue.submit(lambda: self._logps(batch))

    def close(self) -> None:
        self.queue.close()
        self._wire.close()

    def _logps(self, batch: Batch) -> Logps:
        rows = rows_of(batch.groups)
        every = self._wire.logps([row for row, _ in rows])
        tokens = tuple(logps[places] for logps, (_, places) in zip(every, rows, strict=True))
        return Logps(tokens, torch.stack([logps.double().sum() for logps in tokens]))


class TinkerTrainer(Trainer):
    """Trains the adapter on a server."""

    def __init__(self, wire: Wire, optimizer: OptimizerConfig) -> None:
        self._wire, self._updates = wire, TinkerUpdates(wire, optimizer)
        scorer: Any = TinkerScorer(wire)
        self._begin(scorer, self._updates, _Unmeasured())

    def save_weights(self, path: Path) -> Future[None]:
        return self.save_checkpoint(path)

    def load_checkpoint(self, files: Sequence[Path]) -> Future[None]:
        return self.load_weights(Stored(files))

    def load_state(self, tensors: Mapping[str, Whole]) -> Future[None]:
        return self.load_weights(tensors)

    def restore(
        self, weights: Mapping[str, Tensor], state: Mapping[str, Whole]
    ) -> list[Future[None]]:
        return [self.load_state(state)]

    def _load_whole_weights(self, weights: Mapping[str, Tensor]) -> None:
        self._updates.load_weights(weights)

    def _forward_backward(self, batch: Batch, loss: BatchLoss) -> StepResult:
        rows, places = zip(*rows_of(batch.groups), strict=True)
        every = self._wire.logps(rows)
        scored = [logps[where] for logps, where in zip(every, places, strict=True)]
        values = torch.cat(scored).double().requires_grad_()
        with torch.enable_grad():
            logps = TokenLogps.of_values(values, lengths_of(batch.groups))
            losses, metrics = loss(logps, torch.arange(len(batch.groups)))
            (gradient,) = torch.autograd.grad(losses.sum(), values)
        found = values_by_group([detached(losses, logps, metrics)])
        result = step_result(list(metrics), found, batch.groups)
        parts = gradient.float().split([len(where) for where in places])
        spread = [torch.zeros(len(row.ids)) for row in rows]
        for whole, where, part in zip(spread, places, parts, strict=True):
            whole[where] = part
        self._updates.add(rows, every, spread)
        return result


class TinkerPolicy(TorchPolicy):
    """A folder opened for training on a server. Its model is here, too, on the host's CPU or a
    device: it shows that the server has the same one, and in the end takes the adapter."""

    def __init__(
        self, folder: Path, config: TrainConfig, ranks: Ranks, role: Role, how: TinkerTraining
    ) -> None:
        if ranks.count > 1:
            raise ValueError("backend=tinker trains in one process; a server has the devices")
        if role.kind is not AutoModelForCausalLM:
            raise ValueError("backend=tinker trains language models; use torch (backend=null)")
        assert config.lora is not None, "the config has no adapter"
        super().__init__(folder, config, ranks, False, role)
        self._how, self._lora = how, config.lora

    def make_ready(
        self,
        groups: Sequence[TokenGroup],
        others: Sequence[TokenGroup] = (),
        shown_by: Sequence[Reference] = (),
    ) -> tuple[ScoredBy, list[str]]:
        """As in `Policy`; then `trainer` is the server's.

        Raises ValueError if the server has another model, or trains another adapter.
        """
        scored_by, notices = super().make_ready(groups, others, shown_by)
        how, here, config = self._how, self.trainer, self._config
        wire = Wire(how.base_model, self._lora.r, config.seed, how.address, how.patience)
        there = TinkerTrainer(wire, config.optimizer)
        try:
            self._require_adapter(wire)
            shortest = sorted(groups, key=lambda group: group.num_tokens)[:_COMPARED]
            each = [trainer.logps(trainer.prepare(shortest)).result() for trainer in (there, here)]
            self._require_model(shortest, *(one.of(shortest).tokens for one in each))
        except BaseException:
            there.close()
            raise
        finally:
            here.close()
        self.trainer = there
        told = (
            f"a server ({how.base_model}) has trained this model: it is recorded, and not promised "
            "to come out again"
        )
        return replace(scored_by, backend=how.name), [*notices, told]

    def trained(self) -> Mapping[str, Tensor]:
        return self.trainer.get_weights().result()

    def _require_adapter(self, wire: Wire) -> None:
        weights, told = wire.adapter()
        found = {_in_model(name): tuple(weight.shape) for name, weight in weights.items()}
        found |= {"alpha": told["lora_alpha"], "r": told["r"]}
        trained = (item for item in self._model.named_parameters() if item[1].requires_grad)
        expected: dict[str, Any] = {name: tuple(weight.shape) for name, weight in trained}
        expected |= {"alpha": self._lora.alpha, "r": self._lora.r}
        names = found.keys() | expected.keys()
        for name in sorted(n for n in names if found.get(n) != expected.get(n)):
            raise ValueError(
                f"the adapter of the server has {name}={found.get(name)}, and that of lora has "
                f"{expected.get(name)}; change lora, as in lora.alpha=32 or target_modules"
            )

    def _require_model(self, groups: Sequence[TokenGroup], there: Tensor, here: Tensor) -> None:
        off = (there - here).abs().max().item()
        if not off <= (allowed := START_TOLERANCE[self._config.dtype]):
            rows = ", ".join(repr(group.row) for group in groups)
            raise ValueError(
                f"the model {self._how.base_model} of the server is not that of {self._folder}, or "
                f"computes in another dtype than {self._config.dtype}: logps of {rows} differ by "
                f"{off:.2g} a token, and {allowed:.2g} is allowed"
            )


class _Unmeasured:
    def report(self, batch: Batch, seconds: float) -> dict[str, float]:
        return {}


def rows_of(groups: Sequence[TokenGroup]) -> list[tuple[Row, Tensor]]:
    """Each response with its prompt, and the places of its scored tokens in the row, int64."""
    rows = []
    for group in groups:
        if group.images:
            raise ValueError(f"row {group.row!r} has images, which are not sent to a server")
        for response in group.responses:
            ids, length = (*group.prompt_ids, *response.ids), len(group.prompt_ids)
            fed = length + response.num_fed
            places = torch.tensor([length + place - 1 for place, _ in response.readouts])
            rows.append((Row(ids[:fed], ids[1 : fed + 1], {}), places))
    return rows


def _in_model(name: str) -> str:
    """The name of a weight of `peft`'s file in the model that has the adapter."""
    inner = name.removeprefix("base_model.model.")
    return inner.replace(".lora_A.weight", ".lora_A.default.weight").replace(
        ".lora_B.weight", ".lora_B.default.weight"
    )
