"""One segment of an online run: from a model folder, and optionally the state of an earlier
segment, to a new model folder and state.

    OUTPUT/model/                    the trained model
          /state/state.safetensors   its weights in the dtype of updates, the optimiser's moments
                /earlier.safetensors the weights of the last iterations, if sampling is behind
                /state.json          the numbers of iterations and tokens so far, and the settings
                                     without which the state means something else
          /rollouts/                 the rollouts, if the segment sampled them; see `rollouts`
          /metrics.jsonl             one line for each iteration
          /summary.md                rewards and completions of the first and the last iteration
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from steps.checking.judges import Judges
from steps.data.rows.jsonl import write_json_lines
from steps.data.tokens.rendering import load_tokenizer
from steps.data.vocabularies import require_meaning
from steps.distillation.config import TeacherConfig
from steps.distillation.distilled import require_size, role_of_student
from steps.distillation.online_teacher import (
    OnlineTeacher,
    Teachers,
    files_of,
    live_teacher,
    recorded_teacher,
)
from steps.generation.choosing import EngineChoice
from steps.generation.config import WHOLE
from steps.generation.engine import Engine, Finished, Request
from steps.generation.engine_config import EngineConfig, OwnEngine
from steps.generation.remote.syncing import Score, SyncedEngines
from steps.generation.sampling import decoded, end_tokens
from steps.models.config import Dtype
from steps.models.folders import load_model, vocabulary_size
from steps.models.ranks import Ranks
from steps.models.workplace import Workplace
from steps.online.config import RlConfig
from steps.online.episodes import World
from steps.online.iteration_rollouts import Kept, Recorded
from steps.online.iterations import Segment, Source, iterate
from steps.online.learning_from import experience_of
from steps.online.methods.policy_gradient import Over, PolicyGradient
from steps.online.recording import (
    Drawn,
    require_ids,
    require_whole_distribution,
    tokenized,
    write_recording,
)
from steps.online.rewarding.rewards import Reward
from steps.online.rollouts import Rollout
from steps.online.sampled import Asked, Mixed, Sampled, current_weights, longest_examples
from steps.online.staleness import Earlier, Lagged
from steps.online.updates import Learner, logps_of
from steps.scoring.config import Attention
from steps.scoring.examples import TokenGroup, TokenResponse, read_demonstrations
from steps.scoring.parity import choose_attention
from steps.scoring.scored_by import model_digest
from steps.scoring.scorer import Scorer, build_scorer
from steps.shared.checks import require
from steps.shared.execution_detail import execution_detail
from steps.shared.harm import far_from, stopped_ending
from steps.training.checkpoints import Checkpoints
from steps.training.config import Schedule
from steps.training.metrics import StepMetrics, side_by_side
from steps.training.policy import LANGUAGE_MODEL, TorchPolicy
from steps.training.trainer import Trainer

_STATE, _REACHED, _ROLLOUTS = "state.safetensors", "state.json", "rollouts"
_TEACHER = "teacher"
_LOOKED_AT = ("reward", "completions/", "kl", "loss", "teacher/")
"""How the names begin of the metrics that ``summary.md`` shows."""


@dataclass(frozen=True)
class Folders:
    """The start of a segment: the `policy`; the `state` of an earlier segment, whose weights then
    replace the policy's; a frozen `reference` for methods that need one (by default the policy);
    and a `teacher` for methods that need one (or several), or a recording `taught` by one."""

    policy: Path
    state: Path | None = None
    reference: Path | None = None
    teacher: Teachers | None = None
    taught: Path | None = None


def run_online(
    start: Folders,
    config: RlConfig,
    examples: Sequence[TokenGroup],
    source: Callable[[Trainer, Kept, Earlier], Source],
    iterations: int,
    place: Workplace,
) -> dict[str, Any]:
    """Run `iterations` iterations; return the metrics of the first and the last, with `notices`.

    The run resumes from checkpoints and rollouts in scratch.

    Args:
        examples: examples like those that will be scored, for the check of packing.
        source: makes the source of rollouts from the trainer, the segment's stored rollouts, and
            the weights of earlier iterations.
    """
    require(iterations >= 1, "iterations must be at least 1", iterations)
    ranks = place.ranks
    first, tokens = _reached(start.state)
    meaning = _meaning(start, config)
    segment = Segment(first, first + iterations, tokens)
    end = segment.last if config.optimizer.schedule is Schedule.constant else config.horizon
    rule = "horizon must reach to the run's last iteration, where the schedule ends"
    require(end is not None and end >= segment.last, f"{rule}: {segment.last}", config.horizon)
    teacher, role = _teacher(start, config, examples, place), LANGUAGE_MODEL
    if teacher and (divergence := config.method.divergence):
        role = role_of_student(divergence, teacher.vocabulary)
    policy = TorchPolicy(start.policy, config, ranks, role=role)
    vocabulary = policy.vocabulary
    if teacher:
        require_size(vocabulary, start.policy, teacher.vocabulary, teacher.source)
        vocabulary = teacher.vocabulary
    require_ids(_read(examples), vocabulary)
    scored_by, notices = policy.make_ready(examples)
    notices = [*notices, *(teacher.notices if teacher else ())]
    if ranks.is_first and policy.trainer.scorer.model.device.type == "cpu":
        notices = [*notices, *_other_threads(place.scratch)]
    kept = Kept(place.scratch / _ROLLOUTS)
    checkpoints = Checkpoints(place.scratch / "checkpoints", config.keep_last, ranks)
    reference = _reference(start, config, examples, scored_by.attention, ranks)
    earlier = Earlier(config.lag, segment.last)
    try:
        if start.state is not None:
            earlier.load(start.state, first)
            _load_state(policy.trainer, start.state)
        learner = Learner(policy.trainer, config, ranks, reference, teacher)
        drawn = source(policy.trainer, kept, earlier)
        keep = kept.put if ranks.is_first else lambda iteration, rollouts: None
        log = iterate(learner, drawn, segment, checkpoints, place, keep, earlier)
        state = place.output / "state"
        state.mkdir(parents=True, exist_ok=True)
        policy.trainer.save_state(state / _STATE).result()
        weights = policy.trained()
    finally:
        policy.trainer.close()
        for frozen in (reference, teacher):
            if frozen is not None:
                frozen.close()
    if ranks.is_first:
        earlier.save(state)
        reached = {"iterations": segment.last, "num_tokens": log[-1]["num_tokens"], **meaning}
        (state / _REACHED).write_text(json.dumps(reached) + "\n")
        policy.save(weights, place.output / "model", place.base)
        write_json_lines(place.output / "metrics.jsonl", log)
        (place.output / "summary.md").write_text(_first_and_final(log))
    before, after = (1 - log[n]["completions/clipped_ratio"] for n in (0, -1))
    harmed = stopped_ending(before, after, config.prompts, "model of the first iteration")
    apart = [line["kl/k1"] for line in log if "kl/k1" in line]
    harmed += far_from(apart[-1] if apart else None, "reference")
    notices = [*notices, *_untaught(log), *harmed]
    return _summary(log) | ({"notices": notices} if notices else {})


def run_sampling(
    start: Folders,
    config: RlConfig,
    prompts: Path,
    reward: Reward,
    iterations: int,
    place: Workplace,
    engine: EngineConfig = OwnEngine(),
    environment: Judges | None = None,
    answers: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """`run_online` with completions that the policy samples. Also writes the rollouts.

    Args:
        reward: gives an iteration's completions their rewards, on the first rank only.
        environment: processes that reply to turns, where completions are episodes.
        answers: records of demonstrations, if the method learns from some.

    Several ranks share the sampling, each with the whole model.

    Raises ValueError if there are too few prompts for an iteration.
    """
    tokenizer = load_tokenizer(start.policy)
    rows, prompt_ids, tally = tokenized(prompts, tokenizer, config.max_prompt_length)
    model = load_model(start.policy, config.dtype)
    pairs = zip(rows, prompt_ids, strict=True)
    stop_ids = tuple(end_tokens(model, tokenizer))
    asked = Asked([(row.row, tuple(ids)) for row, ids in pairs], stop_ids)
    require_ids(asked.prompts, vocabulary_size(model))
    first = asked.requests(config, 0)
    choice = engine.connect(model, first, "", config.slots, config.tokens_per_forward)
    _require_one_way(choice, place.ranks)
    _require_at_hand(choice, place.ranks, config.lag)
    examples = longest_examples(asked, config, vocabulary_size(model))
    shown = list(read_demonstrations(answers, vocabulary_size(model))) if answers else []
    _require_short(shown, config)
    examples += sorted(shown, key=lambda group: group.longest_sequence)[-2:]

    by_row = {row.row: row for row in rows}

    world = environment and World(environment, by_row, tokenizer)

    def judge(rollouts: Sequence[Rollout]) -> list[Rollout]:
        said = [decoded(tokenizer, rollout.last_turn) for rollout in rollouts]
        return reward(rollouts, said, by_row)

    with ThreadPoolExecutor(1, "sampler") as thread:

        def source(trainer: Trainer, kept: Kept, earlier: Earlier) -> Source:
            weights = current_weights(trainer, start.policy, config)
            drawing = checked_by(choice.engine, trainer)
            sampled = Sampled(weights, drawing, asked, config, judge, kept, place, world)
            if config.method.of_data:
                return Mixed(sampled, shown, partial(logps_of, trainer))
            return Lagged(sampled, earlier, thread) if config.lag else sampled

        summary = run_online(start, config, examples, source, iterations, place)
    if place.ranks.is_first:
        last = summary["iterations"]
        drawn = list(Kept(place.scratch / _ROLLOUTS).all(range(last - iterations, last)))
        drawing = WHOLE | {"temperature": config.temperature}
        recorded = Drawn(rows, drawn, tokenizer, tally, choice, drawing)
        write_recording(place.output / _ROLLOUTS, recorded, start.policy)
        for iteration in range(last - iterations, last) if start.teacher else ():
            for file in files_of(place.scratch / _TEACHER, iteration):
                shutil.copyfile(file, place.output / _ROLLOUTS / file.name)
    told = [*summary.get("notices", ()), *_notices(choice)]
    return summary | tally.metrics() | ({"notices": told} if told else {})


def _require_short(shown: Sequence[TokenGroup], config: RlConfig) -> None:
    """Raise ValueError if an answer of data is longer than what its tokens are divided by: only the
    iteration that takes it would find out."""
    method, most = config.method, config.max_new_tokens
    if isinstance(method, PolicyGradient) and method.over is Over.constant:
        for group in shown:
            if (long := group.responses[0].num_scored) > most:
                raise ValueError(
                    f"row {group.row!r} of the demonstrations has {long} tokens, and over=constant "
                    f"divides by max_new_tokens={most}; raise max_new_tokens, or set method.over"
                )


def _require_one_way(choice: EngineChoice, ranks: Ranks) -> None:
    """Raise ValueError unless all ranks sample alike, each with an engine in its own process."""
    if len(set(ranks.gather(choice.name))) > 1:
        raise ValueError("the model takes slots on some ranks only; train with one process")
    if ranks.count > 1 and isinstance(choice.engine, SyncedEngines):
        raise ValueError(
            f"{ranks.count} processes train, and engines elsewhere take weights from one only; "
            "leave out engine, and the processes share the sampling, or train with processes=1"
        )


def _require_at_hand(choice: EngineChoice, ranks: Ranks, lag: int) -> None:
    """Raise ValueError if what draws must keep step with the trainer, and is to be behind it."""
    if lag and (ranks.count > 1 or isinstance(choice.engine, SyncedEngines)):
        raise ValueError(
            f"lag is {lag}: several processes, and engines elsewhere, draw in step with the "
            "trainer; leave out lag, or sample in the one process that trains"
        )


def checked_by(engine: Engine, trainer: Trainer) -> Engine:
    """An engine whose new weights are compared with the trainer's scoring, if it is elsewhere."""
    return engine.scored_by(_scoring(trainer)) if isinstance(engine, SyncedEngines) else engine


def _scoring(trainer: Trainer) -> Score:
    def score(pairs: Sequence[tuple[Request, Finished]]) -> list[Tensor]:
        groups = [
            TokenGroup(request.row, "", request.prompt_ids, (TokenResponse(finished.ids),))
            for request, finished in pairs
        ]
        return list(trainer.logps(trainer.prepare(groups)).result().tokens)

    return score


@execution_detail
def _notices(choice: EngineChoice) -> list[str]:
    """Notices for the user about the sampling engine."""
    told = [choice.notice] if choice.notice else []
    if not choice.batch_invariant:
        told.append(
            "completions depend, in their last bits, on what is written beside them here: with "
            "other slots, or after a kill, the run may become another one"
        )
    return told


def run_replay(
    start: Folders, config: RlConfig, rollouts: Path, place: Workplace
) -> dict[str, Any]:
    """`run_online` with the judged rollouts in a folder, without sampling. With a run's own
    rollouts and settings, this repeats that run exactly.

    Raises ValueError if the method weighs tokens by the policy, and the rollouts were sampled at
    another temperature than 1 or from a part of the distribution.
    """
    if config.method.weighs_by_policy:
        require_whole_distribution(rollouts)
    start, needs_rewards = replace(start, taught=rollouts), config.method.needs_rewards
    recorded = Recorded(rollouts, config.prompts, _reached(start.state)[0], needs_rewards)
    drawn = (
        experience_of(part, config.max_new_tokens, needs_rewards=needs_rewards)
        for part in recorded.iterations
    )
    examples = [group for experience in drawn for group in experience.groups]
    require(bool(examples), "a completion must have a token that the policy sampled", rollouts.name)
    iterations = len(recorded.iterations)
    require_meaning(
        rollouts, start.policy, _ids(examples), "sample rollouts with a model of this tokenizer"
    )
    return run_online(start, config, examples, lambda *_: recorded, iterations, place)


def _read(examples: Iterable[TokenGroup]) -> Iterator[tuple[str, tuple[int, ...]]]:
    return ((g.row, ids) for g in examples for ids in (g.prompt_ids, *(r.ids for r in g.responses)))


def _ids(examples: Iterable[TokenGroup]) -> Callable[[], Iterable[int]]:
    return lambda: chain.from_iterable(ids for _, ids in _read(examples))


def _reference(
    start: Folders,
    config: RlConfig,
    examples: Sequence[TokenGroup],
    attention: Attention,
    ranks: Ranks,
) -> Scorer | None:
    """The scorer of the reference, with the policy's attention; None if nothing needs one."""
    if not (config.method.needs_reference or config.log_kl):
        return None
    folder = start.reference or start.policy
    require_meaning(
        start.policy, folder, _ids(examples), "take a reference with the policy's tokenizer"
    )
    model = load_model(folder, config.dtype, ranks.count > 1)
    scorer = build_scorer(model, config.tokens_per_forward, ranks)
    choose_attention(scorer, examples, attention, ranks)
    return scorer


def _teacher(
    start: Folders, config: RlConfig, examples: Sequence[TokenGroup], place: Workplace
) -> OnlineTeacher | None:
    """The teacher, if the method needs one; raises ValueError if one is missing, or not needed."""
    name, kept = config.method.name, config.method.kept
    if not config.method.needs_teacher:
        if start.teacher is not None:
            raise ValueError(f"the method {name} learns from no teacher; leave teacher out")
        return None
    if start.teacher is not None:
        how = TeacherConfig(
            dtype=config.dtype, tokens_per_forward=config.tokens_per_forward, top_k=kept
        )
        folder = place.scratch / _TEACHER
        return live_teacher(start.teacher, start.policy, how, examples, folder, place.ranks)
    if start.taught is None:
        raise ValueError(f"the method {name} learns from a teacher; give train_online one")
    return recorded_teacher(start.taught, kept)


def _meaning(start: Folders, config: RlConfig) -> dict[str, Any]:
    """What the state of a segment says of its numbers: the base of adapters and their scale,
    without which they are not the policy, and the form of the optimiser's numbers.

    Raises ValueError if the numbers of the segment that `start` names mean something else.
    """
    is_mastered = config.master_weights and config.dtype is Dtype.bfloat16
    meaning: dict[str, Any] = {
        "dtype (of updates)": str(Dtype.float32 if is_mastered else config.dtype),
        "optimizer.eight_bit": config.optimizer.eight_bit,
        "optimizer.algorithm": str(config.optimizer.algorithm),
    }
    if config.lora is not None:
        meaning |= {
            "base": model_digest(start.policy),
            "lora.alpha": config.lora.alpha,
            "lora.rslora": config.lora.rslora,
        }
    if start.state is None:
        return meaning
    before = {"lora.rslora": False, "optimizer.algorithm": "adamw"} | json.loads(
        (start.state / _REACHED).read_text()
    )
    if config.lora is not None and before.get("base") != meaning["base"]:
        raise ValueError(
            f"the state that start names has the adapters of another base than policy "
            f"({before.get('base', 'none')}, and policy is {meaning['base']}); give the policy of "
            "the first segment, which is not the model that a segment ended with"
        )
    for name, value in meaning.items():
        if before.get(name, value) != value:
            raise ValueError(
                f"the state that start names was made with {name}={before[name]}, and this segment "
                f"has {value}: its numbers would mean something else; keep the setting of the "
                "segment before"
            )
    return meaning


def _reached(state: Path | None) -> tuple[int, int]:
    """The iterations and tokens of a run before this segment."""
    if state is None:
        return 0, 0
    file = state / _REACHED
    try:
        reached = json.loads(file.read_text())
        iterations, tokens = int(reached["iterations"]), int(reached["num_tokens"])
        require(min(iterations, tokens) >= 0, "counts must not be negative", reached)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{file} does not say how far a run came ({error!r}); give start the state of a run"
        ) from error
    return iterations, tokens


def _load_state(trainer: Trainer, state: Path) -> None:
    """Give the trainer the weights and moments with which an earlier segment ended."""
    file = state / _STATE
    try:
        trainer.load_checkpoint([file]).result()
    except (OSError, KeyError, SafetensorError) as error:
        raise ValueError(
            f"{file} is not the whole state of a run ({error!r}); make that segment again"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{file} is the state of another model or of other adapters ({error}); give policy and "
            "lora of the segment before"
        ) from error


def _other_threads(scratch: Path) -> list[str]:
    """A notice if earlier attempts at this segment had another number of threads."""
    folder = scratch / "threads"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(torch.get_num_threads())).write_text("")
    counts = sorted(file.name for file in folder.iterdir())
    if len(counts) == 1:
        return []
    return [
        f"attempts at this segment had {' and '.join(counts)} threads, so its weights may differ "
        "in their last bits from those of a run with one number; set OMP_NUM_THREADS to keep it"
    ]


def _untaught(log: Sequence[StepMetrics]) -> list[str]:
    """A notice if the policy has learnt nothing."""
    if any(line["updates"] for line in log):
        return []
    cut = sum(line["completions/clipped_ratio"] for line in log) / len(log)
    were_cut = f"{cut:.0%} of them were cut at max_new_tokens"
    why = f"see the rewards of completions; {were_cut}" if cut else "see the rewards"
    if not any("reward" in line for line in log):
        why = f"no completion had a reward, and {were_cut}"
    return [f"no iteration had anything to learn, so the weights have not changed; {why}"]


def _summary(log: Sequence[StepMetrics]) -> dict[str, Any]:
    named = {"first": log[0], "final": log[-1]}
    return {
        "iterations": log[-1]["step"],
        "tokens": log[-1]["num_tokens"],
        **{when: {n: v for n, v in line.items() if n != "step"} for when, line in named.items()},
    }


@execution_detail
def _first_and_final(log: Sequence[StepMetrics]) -> str:
    """The ``summary.md`` of a segment: what a reader looks at first, as a Markdown table."""
    columns = {
        f"iteration {line['step']}": {n: v for n, v in line.items() if n.startswith(_LOOKED_AT)}
        for line in (log[0], log[-1])
    }
    title = "The only iteration" if len(columns) == 1 else "First and last iteration"
    return side_by_side(title, columns)
