"""A tiny policy that is rewarded for even tokens: online runs of seconds, for the tests."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tiny_models import VOCABULARY, word_tokenizer
from waiting import kill_this_process
from worlds import Echo

from steps.checking.config import JudgeConfig
from steps.data.rows.jsonl import read_json_lines
from steps.data.rows.rows import PromptRow
from steps.distillation.online_teacher import Teachers
from steps.environments.playing import replying
from steps.generation.slots import SlotEngine
from steps.models.folders import load_model
from steps.models.workplace import Workplace
from steps.online.config import RlConfig
from steps.online.episodes import World
from steps.online.iteration_rollouts import Kept
from steps.online.iterations import Source
from steps.online.online_run import Folders, run_online
from steps.online.rollouts import Rollout
from steps.online.sampled import Asked, Sampled, current_weights, longest_examples
from steps.online.staleness import Earlier, Lagged
from steps.training.config import OptimizerConfig, Schedule
from steps.training.trainer import Trainer

END = 2
ASKED = Asked([(f"row-{n}", (1, 3 + n, 9, 5 + n % 3)) for n in range(10)], (END,))
EAGER = OptimizerConfig(learning_rate=1e-2, schedule=Schedule.constant)


def rl(**settings: Any) -> RlConfig:
    """Four prompts with six completions of at most seven tokens."""
    fixed: dict[str, Any] = {
        "prompts": 4,
        "completions": 6,
        "max_new_tokens": 7,
        "tokens_per_forward": 64,
        "optimizer": EAGER,
        "checkpoint_every_seconds": None,
        "slots": 24,
    }
    return RlConfig(**{**fixed, **settings})


def even_share(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The reward: which share of the tokens is even."""
    return [
        replace(r, rewards={"even": sum(i % 2 == 0 for i in r.ids) / len(r.ids)}) for r in rollouts
    ]


def run(
    policy: Path,
    work: Path,
    config: RlConfig,
    iterations: int = 2,
    *,
    start: Path | None = None,
    reference: Path | None = None,
    teacher: Path | Teachers | None = None,
    judge: Callable[[Sequence[Rollout]], Sequence[Rollout]] = even_share,
    asked: Asked = ASKED,
    place: Workplace | None = None,
    world: World | None = None,
    thread: Executor | None = None,
) -> dict[str, Any]:
    """An online run into ``work/out``, with its scratch beside it."""
    place = place or Workplace(work / "out", work / "scratch")
    engine = SlotEngine(load_model(policy, config.dtype), "", config.slots)
    examples = longest_examples(asked, config, VOCABULARY)

    with thread or ThreadPoolExecutor(1) as drawing:

        def source(trainer: Trainer, kept: Kept, earlier: Earlier) -> Source:
            weights = current_weights(trainer, policy, config)
            sampled = Sampled(weights, engine, asked, config, judge, kept, place, world)
            return Lagged(sampled, earlier, drawing) if config.lag else sampled

        taught = Teachers({"": teacher}) if isinstance(teacher, Path) else teacher
        folders = Folders(policy, start, reference, taught)
        return run_online(folders, config, examples, source, iterations, place)


def rollouts_of(work: Path) -> list[Rollout]:
    """The rollouts that a run has kept."""
    folder = work / "scratch" / "rollouts"
    return list(Kept(folder).all(range(len(list(folder.iterdir())))))


def log_of(work: Path) -> list[dict[str, Any]]:
    """A run's line of metrics for each iteration."""
    return read_json_lines(work / "out/metrics.jsonl")


EVERY = 2
"""Iterations from one checkpoint to the next."""


def run_until(
    policy: Path, work: Path, iterations: int, training: int, sampling: int, **settings: Any
) -> None:
    """A run that kills itself: when so many iterations are done and their checkpoint is on disk, or
    when so many completions are drawn by this process; 0: never. A teacher lies beside the policy.
    """
    torch.set_num_threads(1)
    place = _killed_after(work, iterations, training)
    SlotEngine.sample = _killed_at(SlotEngine.sample, sampling)  # type: ignore[method-assign]
    config = rl(checkpoint_every_steps=EVERY, minibatches=2, **settings)
    teacher = policy.with_name("teacher") if config.method.needs_teacher else None
    run(policy, work, config, iterations, place=place, teacher=teacher)


def play_until(policy: Path, work: Path, iterations: int, training: int, sampling: int) -> None:
    """The same for a run that plays episodes."""
    torch.set_num_threads(1)
    place = _killed_after(work, iterations, training)
    SlotEngine.converse = _killed_at(SlotEngine.converse, sampling)  # type: ignore[method-assign]
    config = rl(checkpoint_every_steps=EVERY, max_new_tokens=20)
    asked = Asked(ASKED.prompts, tuple(range(2, 14)))
    rows = {row: PromptRow(row, ({"role": "user", "content": "w3"},)) for row, _ in asked.prompts}
    with replying(Echo(), JudgeConfig()) as judges:
        assert judges is not None
        world = World(judges, rows, word_tokenizer())
        run(policy, work, config, iterations, judge=list, asked=asked, place=place, world=world)


def _killed_after(work: Path, iterations: int, training: int) -> Workplace:
    def on_progress(done: int, total: int, metrics: object) -> None:
        if done == training:
            saved = done - done % EVERY if done < iterations else 0
            there = work / f"scratch/checkpoints/step-{saved:06d}"
            kill_this_process(once_there=there if saved else None)

    return Workplace(work / "out", work / "scratch", on_progress=on_progress)


def _killed_at(sample: Callable[..., Any], sampling: int) -> Any:
    drawn = 0

    def counted(*arguments: Any) -> Any:
        nonlocal drawn
        for finished in sample(*arguments):
            drawn += 1
            if drawn == sampling:
                kill_this_process()
            yield finished

    return counted
