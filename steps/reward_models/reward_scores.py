"""Scoring with a reward model: the scores of the responses of groups, one shard at a time.

    SCRATCH/shards/scores-00000.jsonl    group_id, scores of its responses

Shards are written atomically, and interrupted scoring resumes after the existing shards. Several
ranks share the packs of every shard.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from steps.data.rows.jsonl import read_json_lines, write_json_lines
from steps.models.folders import vocabulary_size
from steps.models.positions import beyond_training
from steps.models.workplace import Left, Workplace
from steps.reward_models.classifier import load_reward_model
from steps.reward_models.config import RewardScoring
from steps.reward_models.head_scores import VALUES
from steps.scoring.examples import TokenGroup, longest, read_pairs
from steps.scoring.parity import choose_attention
from steps.scoring.scorer import Scorer, build_scorer

Record = Mapping[str, Any]
Scored = tuple[list[dict[str, Any]], dict[str, Any]]
"""Records to write, and metrics; both are empty on all ranks but the first."""


def score_pairs(
    records: Iterable[Record], model: Path, config: RewardScoring, place: Workplace
) -> Scored:
    """For each record of pair tokens, a record with ``row``, ``pair_id``, ``scores`` (of the chosen
    and the rejected response) and ``tokens`` (the numbers of their tokens)."""

    def read(vocabulary: int) -> Sequence[TokenGroup]:
        return read_pairs(records, vocabulary, whole=True)

    groups, scores, notices = score_groups(model, read, config, place)
    if not place.ranks.is_first:
        return [], {}
    scored = [
        {
            "row": group.row,
            "pair_id": group.group_id,
            "scores": of_group,
            "tokens": [len(response) for response in group.responses],
        }
        for group, of_group in zip(groups, scores, strict=True)
    ]
    return scored, {"pairs": len(scored), **mean_score(scores), **notices}


def score_groups(
    model: Path,
    read: Callable[[int], Sequence[TokenGroup]],
    config: RewardScoring,
    place: Workplace,
) -> tuple[Sequence[TokenGroup], list[list[float]], dict[str, Any]]:
    """Score the groups that `read` returns for the size of the model's vocabulary.

    Returns the groups, the scores of their responses (on the first rank only), and ``notices`` if
    there are any. Progress counts groups.

    Raises:
        FloatingPointError: a score of a row, which the message names, is not finite.
        Left: `place.stopping` is true on any rank; raised between two shards.
    """
    ranks = place.ranks
    loaded = load_reward_model(model, config.dtype, ranks.count > 1, config.quantization)
    groups = read(vocabulary_size(loaded))
    scorer = build_scorer(loaded, config.tokens_per_forward, ranks, VALUES)
    packing = choose_attention(scorer, groups, config.attention, ranks)
    scores: list[list[float]] = []
    done = 0
    for file, shard in _shards(groups, config.groups_per_shard, place.scratch / "shards"):
        kept = _finished(file, shard) if ranks.is_first else None
        (is_there,) = ranks.any(kept is not None)
        if not is_there:
            kept = scores_by(scorer, shard)
            if ranks.is_first:
                _keep(file, shard, kept)
        scores += kept or []
        done += len(shard)
        place.on_progress(done, len(groups), {})
        (leaving,) = ranks.any(place.stopping())
        if leaving and done < len(groups):
            raise Left(f"left after {done} of {len(groups)} examples, whose scores are kept")
    scorer.close()
    told = [told for told in (packing.notice, beyond_training(loaded, *longest(groups))) if told]
    return groups, scores, {"notices": told} if told else {}


def _shards(
    groups: Sequence[TokenGroup], size: int, folder: Path
) -> Iterator[tuple[Path, Sequence[TokenGroup]]]:
    for number, start in enumerate(range(0, len(groups), size)):
        yield folder / f"scores-{number:05d}.jsonl", groups[start : start + size]


def scores_by(scorer: Scorer, groups: Sequence[TokenGroup]) -> list[list[float]]:
    """The scores of the responses of each group."""
    scores = iter(scorer.logps(scorer.prepare(groups)).result().sequences.tolist())
    return [[next(scores) for _ in group.responses] for group in groups]


def _finished(file: Path, groups: Sequence[TokenGroup]) -> list[list[float]] | None:
    """The scores in `file`; None if it is missing or damaged, or if it has other groups."""
    try:
        records = read_json_lines(file)
        of_groups = [(record["group_id"], len(record["scores"])) for record in records]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    wanted = [(group.group_id, len(group.responses)) for group in groups]
    return [record["scores"] for record in records] if of_groups == wanted else None


def _keep(file: Path, groups: Sequence[TokenGroup], scores: list[list[float]]) -> None:
    records = [
        {"group_id": group.group_id, "scores": own}
        for group, own in zip(groups, scores, strict=True)
    ]
    require_finite(groups, scores)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    write_json_lines(unfinished, records)
    unfinished.replace(file)


def require_finite(groups: Sequence[TokenGroup], scores: Sequence[Sequence[float]]) -> None:
    """Raise FloatingPointError, which names the row, if a score is not finite."""
    for group, own in zip(groups, scores, strict=True):
        if not all(map(math.isfinite, own)):
            raise FloatingPointError(
                f"{group.group_id} (row {group.row!r}) has scores that are not finite: {own}; try "
                "dtype=float32, or drop the row"
            )


def mean_score(scores: Sequence[Sequence[float]]) -> dict[str, float]:
    """The metric ``mean_score``."""
    every = [score for own in scores for score in own]
    return {"mean_score": sum(every) / len(every)}
