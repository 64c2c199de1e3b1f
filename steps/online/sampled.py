"""Sample an iteration's rollouts with the trainer's current weights.

Prompts depend only on (seed, iteration), random numbers only on (seed, iteration, row, number,
position). So any batch-invariant engine gives the same rollouts, in any batches. Finished
completions are stored with the digest of their weights; those in scratch from other weights are
sampled again.
"""

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from steps.generation.config import SamplingConfig
from steps.generation.engine import Engine, Finish, Request
from steps.generation.sampling import make_requests
from steps.models.adapters import add_adapter, merged_weights
from steps.models.folders import load_model
from steps.models.workplace import Workplace, ignore_progress
from steps.online.config import RlConfig
from steps.online.episodes import World
from steps.online.iteration_rollouts import Kept
from steps.online.recording import record
from steps.online.rollouts import OF_DATA, Rollout, of_first
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.training.trainer import Trainer, put_weights

_OF_MIXTURE = 1
"""Sets its draws apart from those of the order of prompts."""
Judge = Callable[[Sequence[Rollout]], Sequence[Rollout]]
"""Gives rollouts their rewards."""


@dataclass(frozen=True)
class Asked:
    """All prompts, by row, and the tokens that end a completion."""

    prompts: Sequence[tuple[str, tuple[int, ...]]]
    stop_ids: tuple[int, ...]

    def requests(self, config: RlConfig, iteration: int) -> list[Request]:
        """What 0-based `iteration` asks for, row after row."""
        chosen = prompts_of(len(self.prompts), config.prompts, iteration, config.seed)
        drawing = SamplingConfig(
            config.max_new_tokens, config.temperature, config.completions, config.seed
        )
        prompts = [self.prompts[index] for index in chosen]
        return make_requests(prompts, drawing, self.stop_ids, iteration)


@dataclass(frozen=True)
class Sampled:
    """A `Source` that draws with `engine`, which it gives the policy's weights before; episodes,
    where there is a world to play them in.

    Several ranks share the rows, each with an engine; the first one judges.

    weights: all weights of the policy as it is now, on every rank's host.
    """

    weights: Callable[[], Mapping[str, Tensor]]
    engine: Engine
    asked: Asked
    config: RlConfig
    judge: Judge
    kept: Kept
    place: Workplace
    world: World | None = None

    def draw(self, iteration: int) -> Sequence[Rollout]:
        """The iteration's judged rollouts with the current weights; see `drawn_by`."""
        return self.drawn_by(self.weights(), iteration)

    def drawn_by(self, tensors: Mapping[str, Tensor], iteration: int) -> Sequence[Rollout]:
        """The iteration's judged rollouts with these weights, from scratch if they are there.
        Raises Left when the run must stop."""
        weights, ranks = weights_digest(tensors), self.place.ranks
        found = self.kept.get(iteration, weights) if ranks.is_first else None
        if ranks.any(found is not None)[0]:
            return of_first(ranks, found)
        if self.engine.weights != weights:
            self.engine.update_weights(tensors, weights)
        scratch = self._scratch(iteration)
        place = replace(self.place, scratch=scratch, on_progress=ignore_progress)
        requests = self.asked.requests(self.config, iteration)
        drawn = record(self.engine, requests, place, self.world, iteration)
        return of_first(ranks, self.judge(drawn) if ranks.is_first else None)

    def forget(self, iteration: int) -> None:
        """As `Source.forget`."""
        self.kept.drop(iteration)
        shutil.rmtree(self._scratch(iteration), ignore_errors=True)

    def _scratch(self, iteration: int) -> Path:
        return self.place.scratch / "drawing" / f"{iteration:06d}"


@dataclass(frozen=True)
class Mixed:
    """A `Source` that gives answers of data in some iterations, as their number and the seed say.

    score: the policy's logps of the scored tokens of some groups, concatenated for each.
    """

    sampled: Sampled
    answers: Sequence[TokenGroup]
    score: Callable[[Sequence[TokenGroup]], Sequence[Tensor]]

    def draw(self, iteration: int) -> Sequence[Rollout]:
        """As `Source.draw`."""
        config = self.sampled.config
        drawn = np.random.default_rng([config.seed, iteration, _OF_MIXTURE]).random()
        if drawn >= config.method.of_data:
            return self.sampled.draw(iteration)
        chosen = prompts_of(len(self.answers), config.prompts, iteration, config.seed)
        groups = [self.answers[index] for index in chosen]
        pairs = zip(groups, self.score(groups), strict=True)
        return [_answer(group, logps.tolist(), iteration) for group, logps in pairs]

    def forget(self, iteration: int) -> None:
        """As `Source.forget`."""
        self.sampled.forget(iteration)


def _answer(group: TokenGroup, logps: Sequence[float], iteration: int) -> Rollout:
    (response,), rest = group.responses, iter(logps)
    scored = response.scored_flags
    each = tuple(next(rest) if is_scored else 0.0 for is_scored in scored)
    ids = group.prompt_ids, response.ids
    return Rollout(group.row, 0, *ids, scored, each, Finish.stop, OF_DATA, iteration)


def current_weights(
    trainer: Trainer, policy: Path, config: RlConfig
) -> Callable[[], Mapping[str, Tensor]]:
    """A function that gives all weights of the policy in training, on every rank's host.

    Adapters are merged into the weights of the folder `policy`, of which the host holds a copy.
    """
    if config.lora is None:
        return lambda: trainer.get_weights(everywhere=True).result()
    model = load_model(policy, config.dtype, on_host=True)
    add_adapter(model, config.lora, config.seed)

    def merged() -> Mapping[str, Tensor]:
        put_weights(trainer.get_weights(everywhere=True).result(), model)
        return merged_weights(model)

    return merged


def prompts_of(there_are: int, wanted: int, iteration: int, seed: int) -> list[int]:
    """The prompts of the 0-based `iteration`: a slice of a permutation of all prompts, one
    permutation for each pass.

    Every iteration has exactly `wanted` distinct prompts; the few prompts that remain at the end of
    a pass are skipped. Raises ValueError if there are fewer prompts than `wanted`.
    """
    if wanted > there_are:
        raise ValueError(
            f"an iteration takes {wanted} prompts, but there are only {there_are}: add rows, or "
            f"set rl.prompts={there_are} (in Python RlConfig(prompts={there_are}))"
        )
    number, place = divmod(iteration, there_are // wanted)
    order = np.random.default_rng([seed, number]).permutation(there_are)
    return order[place * wanted : (place + 1) * wanted].tolist()


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """16 hexadecimal digits that follow from the tensors, by name."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def longest_examples(asked: Asked, config: RlConfig, vocabulary: int) -> list[TokenGroup]:
    """Random completions of maximal length for the longest prompts, for the check of packing before
    anything is sampled."""
    draws = np.random.default_rng(0)
    by_length = sorted(asked.prompts, key=lambda prompt: len(prompt[1]))
    tried = [*by_length[-3:], by_length[0]]

    def response(length: int) -> TokenResponse:
        return TokenResponse(tuple(draws.integers(vocabulary, size=length).tolist()))

    lengths = (config.max_new_tokens, max(1, config.max_new_tokens // 2))
    return [TokenGroup(row, row, ids, tuple(map(response, lengths))) for row, ids in tried]
