"""Convert judged rollouts to training data of other trainers: demonstrations and preference pairs.

Both consist of the token ids that the policy sampled, with masks over these; nothing is tokenised
again. A completion that was cut has no end from the policy, and one without a reward cannot be
compared; both are left out and counted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from steps.checking.llm_judge import filled_in
from steps.data.rows.ledger import Entry
from steps.data.rows.parquet import write_rows
from steps.data.rows.reasons import MalformedRow, Reason
from steps.data.rows.rows import Message, PromptRow
from steps.data.rows.tables import LEDGER, messages_to_column, to_record
from steps.data.tokens.rendering import Chat, load_tokenizer
from steps.data.tokens.token_tables import CONVERSATION_TOKENS, PAIR_TOKENS
from steps.data.tokens.tokenizing import (
    ids_and_masks,
    tokenization,
    tokenize_prompts,
    tokens_id,
)
from steps.data.vocabularies import copy_tokenizer
from steps.online.rewarding.judging import read_prompts, require_prompts
from steps.online.rollouts import Rollout, by_row, read_rollouts, texts
from steps.online.selection import Best, Pairs

_TOKENS = "tokens-00000.parquet"
Asked = Callable[[Sequence[Rollout]], Sequence[Rollout]]
"""Gives rollouts other prompts."""
_Ids = list[int] | MalformedRow


def write_demonstrations(
    recording: Path, how: Best, output: Path, asked: "Asked | None" = None
) -> dict[str, Any]:
    """Write the selected completions as tokens of conversations; return counts.

    Args:
        asked: the prompts that the selected completions get in place of their own.

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
    written = chosen if asked is None else asked(chosen)
    write_rows(output / _TOKENS, CONVERSATION_TOKENS, map(_demonstration, written))
    _write_ledger(output, rows, different, chosen)
    copy_tokenizer(recording, output)
    prompts = len({(rollout.iteration, rollout.row) for rollout in chosen})
    return {"demonstrations": len(chosen), "prompts_used": prompts, **counts}


def with_privilege(recording: Path, tokenizer: Path, template: str) -> Asked:
    """Prompts whose last message is `template`, filled in with the message as ``{prompt}``, the
    row's ``{answer}`` and the reason of the completion's verdict as ``{feedback}``.

    Args:
        tokenizer: a model folder with the tokenizer and the chat template of the recording.

    What it returns raises ValueError, which names the row, if a text is missing, if the last
    message is no user's, or if the tokenizer writes another prompt than the one that was answered.
    """
    rows, made = read_prompts(recording), tokenization(load_tokenizer(tokenizer))

    def asked(rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
        require_prompts(rollouts, rows)
        chats = [_chat(rows[rollout.row]) for rollout in rollouts]
        told = [
            _privileged(chat, template, rows[rollout.row].answer, rollout)
            for chat, rollout in zip(chats, rollouts, strict=True)
        ]
        own, other = (tokenize_prompts(made, of) for of in (chats, told))
        return [_asked(rollout, *ids) for rollout, *ids in zip(rollouts, own, other, strict=True)]

    return asked


def _chat(row: PromptRow) -> Chat:
    return Chat(row.prompt, row.tools, row.template_kwargs)


def _privileged(chat: Chat, template: str, answer: str | None, rollout: Rollout) -> Chat:
    *before, last = chat.messages
    if last["role"] != "user":
        raise ValueError(
            f"row {rollout.row!r} ends with a message of the {last['role']}, and the privileged "
            "text goes into the user's; leave the row out"
        )
    texts = {"prompt": last["content"], "answer": answer, "feedback": rollout.reason}
    for name, text in texts.items():
        if not text and f"{{{name}}}" in template:
            raise ValueError(
                f"row {rollout.row!r}, completion {rollout.k}, has no {name}, which the template "
                "reads; leave the row out, or take another template"
            )
    content = filled_in(template, {name: text or "" for name, text in texts.items()})
    return replace(chat, messages=(*before, {**last, "content": content}))


def _asked(rollout: Rollout, own: _Ids, other: _Ids) -> Rollout:
    if isinstance(own, MalformedRow) or isinstance(other, MalformedRow):
        raise ValueError(f"row {rollout.row!r}: {own if isinstance(own, MalformedRow) else other}")
    if tuple(own) != rollout.prompt_ids:
        raise ValueError(
            f"row {rollout.row!r}: this tokenizer and its chat template write another prompt than "
            "the one that was answered; take the model that sampled the rollouts"
        )
    return replace(rollout, prompt_ids=tuple(other))


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
