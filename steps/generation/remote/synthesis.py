"""Completions from an OpenAI-compatible address: repeated requests, a budget, nothing paid twice.

    SCRATCH/replies.jsonl    {"content": digest, "text", "finish", "prompt_tokens",
                             "completion_tokens"}, a line each

A request is one completion of one row. Its reply is on disk before the next request of its thread,
so a killed run has lost what was under way at most.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import reduce
from itertools import starmap
from pathlib import Path
from typing import Any

from steps.data.rows.completions import require_once
from steps.data.rows.jsonl import write_json_lines
from steps.data.rows.parquet import read_rows
from steps.data.rows.rows import PromptRow
from steps.data.rows.tables import from_record
from steps.generation.remote.synthesis_config import SynthesisConfig
from steps.shared.asked_address import NoReplyError, reply_to
from steps.shared.counts import share_of
from steps.shared.kept_lines import KeptLines, content_digest

Reply = Mapping[str, Any]
_Place = tuple[str, int]
"""A row's id, and the number of its completion."""
_COLUMNS = {"completions": "text", "finish": "finish"}
_USED = ("prompt_tokens", "completion_tokens")
_ENDS = ("stop", "length")
_POLL = 1.0
"""Seconds after which `stopping` is asked again."""


def synthesize(
    prompts: Path,
    config: SynthesisConfig,
    output: Path,
    scratch: Path,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    stopping: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Write ``completions.jsonl`` for the prompts in a folder; return counts, what was paid, and
    `notices`. What was paid is kept if this raises.

    Raises:
        ValueError: there are no prompts, two have one id or one has images; the budget is spent; or
            more prompts than `config.most_without` go without a completion.
        InterruptedError: `stopping` became true.
    """
    rows = _rows(prompts)
    work = _Work(rows, config, KeptLines(scratch / "replies.jsonl"))
    work.run(on_progress, stopping)
    made = []
    for row in rows:
        replies = [work.reply(row.row, k) for k in range(config.num_completions)]
        if row.row not in work.failed:
            both = {of: [reply[name] for reply in replies] for of, name in _COLUMNS.items()}
            made.append({**vars(row), **both})
    write_json_lines(output / "completions.jsonl", made)
    prompt, completion = work.used
    told = work.failed and [
        f"{len(work.failed)} of {len(rows)} prompts have no completion and are left out, e.g. row "
        "{!r}: {}".format(*next(iter(work.failed.items())))
    ]
    return {
        "prompts": len(made),
        "completions": sum(len(record["finish"]) for record in made),
        "cut": sum(record["finish"].count("length") for record in made),
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        **({"cost": config.cost(prompt, completion)} if config.is_priced else {}),
        **({"without": len(work.failed), "notices": told} if told else {}),
    }


class _Work:
    """The requests of one run: which are answered, which failed, and what was paid.

    failed: rows without all of their completions, each with a reason.
    """

    def __init__(self, rows: Sequence[PromptRow], config: SynthesisConfig, kept: KeptLines) -> None:
        self.failed: dict[str, str] = {}
        self._config, self._kept, self._count = config, kept, len(rows)
        self._asked = {
            (row.row, k): _request(row, k, config)
            for row in rows
            for k in range(config.num_completions)
        }

    def reply(self, row: str, k: int) -> Reply:
        """What is kept of a request; empty if it is not answered."""
        return self._kept.get(content_digest([row, k])) or {}

    @property
    def used(self) -> tuple[int, int]:
        """The tokens of all prompts and completions that were paid."""
        return reduce(_sum, starmap(self.reply, self._asked), (0, 0))

    def run(self, on_progress: Callable[[int, int], None], stopping: Callable[[], bool]) -> None:
        """Ask for what is missing, `config.parallel` at a time."""
        missing = [place for place in self._asked if not self.reply(*place)]
        for place in self._asked.keys() - missing:
            self._note(place)
        waiting, running = deque(missing), dict[Future[None], _Place]()
        spent = self.used
        with ThreadPoolExecutor(self._config.parallel) as threads:
            while (waiting or running) and not self._fails and not stopping():
                while waiting and len(running) < self._config.parallel:
                    ahead = [_most(self._asked[p]) for p in (waiting[0], *running.values())]
                    if not self._config.allows(*map(sum, zip(spent, *ahead, strict=True))):
                        break
                    place = waiting.popleft()
                    running[threads.submit(self._ask, place)] = place
                if not running:
                    raise ValueError(self._spent(spent))
                for done in wait(running, _POLL, FIRST_COMPLETED).done:
                    place = running.pop(done)
                    try:
                        done.result()
                    except NoReplyError as error:
                        self.failed.setdefault(place[0], str(error))
                    self._note(place)
                    spent = _sum(spent, self.reply(*place))
                on_progress(len(self._asked) - len(waiting) - len(running), len(self._asked))
        if self._fails:
            row, reason = next(reversed(self.failed.items()))
            raise ValueError(
                f"{len(self.failed)} of {self._count} prompts have no completion, the last, row "
                f"{row!r}, because: {reason}; run again, which asks for what is missing, or leave "
                "these rows out; what was paid is kept"
            )
        if waiting or running:
            raise InterruptedError("left while asking; what was paid is kept")

    @property
    def _fails(self) -> bool:
        return len(self.failed) > share_of(self._config.most_without, self._count)

    def _ask(self, place: _Place) -> None:
        """Ask once, and keep the reply; raises NoReplyError."""
        of, content = self._config, self._asked[place]
        told = reply_to(content, of.address, of.key_variable, of.timeout, of.tries)
        self._kept.put(content_digest([*place]), _read(told, _most(content)))

    def _note(self, place: _Place) -> None:
        """Count a row as failed whose reply is no completion; it is not asked again."""
        reply = self.reply(*place)
        if reply and reply["finish"] not in _ENDS:
            self.failed.setdefault(place[0], f"the reply ended by {reply['finish']}, with no text")

    def _spent(self, spent: tuple[int, int]) -> str:
        config, there = self._config, sum(1 for place in self._asked if self.reply(*place))
        cost = f", which cost {config.cost(*spent):g}" if config.is_priced else ""
        return (
            f"the budget does not allow another request: {there} of {len(self._asked)} completions "
            f"are there, for {sum(spent)} tokens{cost}; raise most_tokens or most_cost and run "
            "again, which asks for the rest"
        )


def _sum(spent: tuple[int, int], reply: Reply) -> tuple[int, int]:
    prompt, completion = (reply.get(name, 0) for name in _USED)
    return spent[0] + prompt, spent[1] + completion


def _rows(prompts: Path) -> list[PromptRow]:
    records = read_rows(prompts)
    require_once(records, prompts, "row")
    rows = [from_record(PromptRow, record) for record in records]
    if not rows:
        raise ValueError(f"{prompts} has no prompts")
    if seeing := next((row.row for row in rows if any("images" in m for m in row.prompt)), None):
        raise ValueError(f"row {seeing!r} has images, which are not sent; leave it out")
    return rows


def _request(row: PromptRow, k: int, config: SynthesisConfig) -> dict[str, Any]:
    content: dict[str, Any] = {
        "model": config.model,
        "messages": list(row.prompt),
        "temperature": config.temperature,
        "max_tokens": config.max_tokens,
    }
    if config.top_p != 1:
        content["top_p"] = config.top_p
    if config.seed is not None:
        content["seed"] = int(content_digest([config.seed, row.row, k])[:8], 16) >> 1
    if row.tools:
        content["tools"] = list(row.tools)
    if row.template_kwargs:
        content["chat_template_kwargs"] = row.template_kwargs  # as vLLM and SGLang take them
    return content


def _most(content: Mapping[str, Any]) -> tuple[int, int]:
    """The most tokens that a request takes for its prompt, and for its completion: a token has a
    byte or more, and the signs of JSON make up for what a chat template adds."""
    sent = {name: content[name] for name in ("messages", "tools") if name in content}
    return len(json.dumps(sent, ensure_ascii=False).encode()), content["max_tokens"]


def _read(told: Any, most: tuple[int, int]) -> dict[str, Any]:
    """What is kept of a reply; without a count of tokens the most that they can be.

    Raises NoReplyError if it is no reply of ``/chat/completions``.
    """
    try:
        (choice,) = told["choices"]
        text, finish = choice["message"].get("content"), str(choice.get("finish_reason"))
        usage = told.get("usage") or {}
        counts = [usage.get(name) for name in _USED]
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise NoReplyError(f"the answer has no reply in it ({type(error).__name__})") from error
    if text is None and finish == "length":  # all tokens went into a thought
        text = ""
    if not isinstance(text, str) or choice["message"].get("tool_calls"):
        text, finish = None, f"no text ({finish})" if finish in _ENDS else finish
    known = [n if type(n) is int and n >= 0 else m for n, m in zip(counts, most, strict=True)]
    return {"text": text, "finish": finish, **dict(zip(_USED, known, strict=True))}
