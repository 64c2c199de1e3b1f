"""Convert judged rollouts to training data of other trainers: demonstrations and preference pairs.

Both consist of the token ids that the policy sampled, with masks over these; nothing is tokenised
again. A completion that was cut has no end from the policy, and one without a reward cannot be
compared; both are left out and counted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from steps.data.rows.ledger import Entry
from steps.data.rows.parquet import write_rows
from steps.data.rows.reasons import Reason
from steps.data.rows.rows import Message
from steps.data.rows.tables import LEDGER, messages_to_column, to_record
from steps.data.tokens.token_tables import CONVERSATION_TOKENS, PAIR_TOKENS
from steps.data.tokens.tokenizing import ids_and_masks, tokens_id
from steps.data.vocabularies import copy_tokenizer
from steps.online.rewarding.judging import read_prompts, require_prompts
from steps.online.rollouts import Rollout, by_row, read_rollouts, texts
from steps.online.selection import Best, Pairs

_TOKENS = "tokens-00000.parquet"


def write_demonstrations(recording: Path, how: Best, output: Path) -> dict[str, Any]:
    """Write the selected completions as tokens of conversations; return counts.

    Raises ValueError if no completion is good enough.
    """
    rows, counts = _drawn(recording)
    different = [_different(drawn) for drawn in rows]
    chosen = [rollout for drawn in different for rollout in how.of(drawn)]
    if not chosen:
        if how.least_reward is None:
            raise ValueError(f"no completion in {recording} has a reward{_left_out(counts)}")
        raise ValueError(
            f"no completion in {recording} has a reward of {how.least_reward} or more; sample more "
            f"of them, or lower least_reward{_left_out(counts)}"
        )
    write_rows(output / _TOKENS, CONVERSATION_TOKENS, map(_demonstration, chosen))
    _write_ledger(output, rows, different, chosen)
    copy_tokenizer(recording, output)
    prompts = len({(rollout.iteration, rollout.row) for rollout in chosen})
    return {"demonstrations": len(chosen), "prompts_used": prompts, **counts}


def write_pairs(recording: Path, how: Pairs, output: Path) -> dict[str, Any]:
    """Write pairs of completions as tokens of preference pairs; return counts.

    Raises ValueError if no prompt has completions of different rewards.
    """
    rows, counts = _drawn(recording)
    different = [_different(drawn) for drawn in rows]
    pairs = [pair for drawn in different for pair in how.of(drawn)]
    if not pairs:
        raise ValueError(
            f"no prompt in {recording} has completions whose rewards differ by more than "
            f"{how.margin:g}; sample more of them, at a higher temperature{_left_out(counts)}"
        )
    write_rows(output / _TOKENS, PAIR_TOKENS, _pair_records(recording, pairs))
    _write_ledger(output, rows, different, chain.from_iterable(pairs))
    copy_tokenizer(recording, output)
    prompts = len({(good.iteration, good.row) for good, _ in pairs})
    return {"pairs": len(pairs), "prompts_used": prompts, **counts}


def _drawn(recording: Path) -> tuple[list[list[Rollout]], dict[str, int]]:
    """The completions of each prompt, and counts of all completions."""
    rows = by_row(read_rollouts(recording))
    for (_, row), of_row in rows.items():
        if len({rollout.k for rollout in of_row}) < len(of_row):
            raise ValueError(f"{recording} has several completions of one number of row {row!r}; "
                             "use the recording as it was sampled")  # fmt: skip
        if len({rollout.prompt_ids for rollout in of_row}) > 1:
            raise ValueError(f"{recording} has completions of different prompts as those of row "
                             f"{row!r}; use the recording as it was sampled")  # fmt: skip
    drawn = [rollout for of_row in rows.values() for rollout in of_row]
    without = sum(not rollout.is_rewarded for rollout in drawn)
    if without == len(drawn):
        raise ValueError(f"{recording} has rollouts without rewards; judge them first")
    counts = {"prompts": len(rows), "completions": len(drawn), "without_reward": without}
    return [*rows.values()], counts | {"cut": sum(r.is_cut for r in drawn)}


_Rows = Sequence[Sequence[Rollout]]
"""Completions of each prompt."""


def _write_ledger(output: Path, rows: _Rows, different: _Rows, used: Iterable[Rollout]) -> None:
    """Write ``ledger.parquet``: what became of each completion, and why.

    Args:
        different: those of `rows` from which `used` was chosen.
    """
    names, compared = (
        {_name(rollout) for rollout in rollouts}
        for rollouts in (used, chain.from_iterable(different))
    )
    entries = (
        Entry("", "rollouts", name, "kept")
        if (name := _name(rollout)) in names
        else Entry("", "rollouts", name, "dropped", *_why_not(rollout, name in compared))
        for rollout in chain.from_iterable(rows)
    )
    write_rows(output / "ledger.parquet", LEDGER, map(vars, entries))


def _why_not(rollout: Rollout, was_compared: bool) -> tuple[Reason, str]:
    """Why a completion is not used."""
    if not rollout.is_rewarded:
        return "no reward", rollout.reason or "a reward of it is missing"
    if rollout.is_cut:
        return "cut", f"its sampling ended by {rollout.finish}"
    if not was_compared:
        return "duplicate", "an earlier completion of the prompt is the same"
    return "not among the best", f"its reward is {rollout.reward:g}"


def _left_out(counts: Mapping[str, int]) -> str:
    """What else may be why nothing is left to choose from."""
    cut, without, every = (counts[name] for name in ("cut", "without_reward", "completions"))
    if not cut and not without:
        return ""
    return f" (of {every} completions, {cut} were cut and {without} have no reward)"


def _different(drawn: Sequence[Rollout]) -> list[Rollout]:
    """The completions that can be compared, without those that an earlier one equals."""
    first: dict[tuple[tuple[int, ...], tuple[bool, ...]], Rollout] = {}
    for rollout in drawn:
        if rollout.is_rewarded and not rollout.is_cut:
            first.setdefault((rollout.ids, rollout.scored), rollout)
    return list(first.values())


def _name(rollout: Rollout) -> str:
    """The label of the row for a completion, unique within a recording."""
    return f"{rollout.iteration}/{rollout.row}/{rollout.k}"


def _demonstration(rollout: Rollout) -> dict[str, Any]:
    ids = [*rollout.prompt_ids, *rollout.ids]
    mask = [*[False] * len(rollout.prompt_ids), *rollout.scored]
    return {"row": _name(rollout), "input_ids": ids, "mask": mask, "length": len(ids)}


def _pair_records(
    recording: Path, pairs: Sequence[tuple[Rollout, Rollout]]
) -> Iterator[dict[str, Any]]:
    rows = read_prompts(recording)
    require_prompts(chain.from_iterable(pairs), rows)
    said = texts(recording, [rollout.ids for pair in pairs for rollout in pair])
    for number, (good, bad) in enumerate(pairs):
        asked = to_record(rows[good.row])
        shared = _common(good.ids, bad.ids)
        sides = ((side.ids, side.scored) for side in (good, bad))
        yield {
            "row": _name(good),
            "pair_id": tokens_id(good.prompt_ids, *ids_and_masks(*sides)),
            "prompt_ids": list(good.prompt_ids),
            "prompt_mask": [False] * len(good.prompt_ids),
            "prompt_length": len(good.prompt_ids),
            **_side("chosen", good, said[2 * number]),
            **_side("rejected", bad, said[2 * number + 1]),
            "shared_prefix": len(good.prompt_ids) + shared,
            "weight": None,
            **{name: asked[name] for name in ("prompt", "tools", "template_kwargs")},
        }


def _side(name: str, rollout: Rollout, text: str) -> dict[str, Any]:
    answer: Message = {"role": "assistant", "content": text}
    return {
        f"{name}_ids": list(rollout.ids),
        f"{name}_mask": list(rollout.scored),
        f"{name}_length": len(rollout.ids),
        f"score_{name}": rollout.reward,
        name: messages_to_column([answer]),
    }


def _common(one: Iterable[int], other: Iterable[int]) -> int:
    """With how many equal tokens both begin."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
