"""Trees of messages, one a record: a prompt, its replies, their replies (OASST, Köpf et al. 2023).

The object in `tree` has a `text`, a `role` and a list `replies` of such objects. Among replies, the
one with the lowest `rank` is the best. A tree becomes either

* one conversation, which follows the best reply at each turn (`tree`); or
* pairs of the assistant's ranked replies to each prompt, as `pairs` selects them (`tree_pairs`).
  What was said before is the path to that prompt. The rows have the labels `RECORD#1` and so on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from steps.data.formats import RecordFormat
from steps.data.formats.preference import paired
from steps.data.formats.ranked import PAIRS, pairs_of
from steps.data.records.conversations import messages, with_system
from steps.data.records.record_fields import MOST_NESTED, found, is_list, score
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import ConversationRow, PreferenceRow
from steps.data.rows.turn_order import ordered

Node = Mapping[str, Any]


@dataclass(frozen=True)
class _OfTrees(RecordFormat):
    tree: str = "prompt"
    system: str | None = None
    turns: str = "alternating"

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> Self | None:
        return cls() if _is_node(record.get("prompt")) else None


@dataclass(frozen=True)
class TreeFormat(_OfTrees):
    """The best conversation of the tree in the field `tree`."""

    makes: ClassVar[type] = ConversationRow

    def parse(self, record: Mapping[str, Any], row: str) -> ConversationRow:
        path, node = [], _root(record, self.tree)
        while len(path) < MOST_NESTED:
            path.append(node)
            if not (replies := _replies(node)):
                break
            node = min(replies, key=_rank)
        told = messages(path, self.tree)
        while len(told) > 1 and told[-1]["role"] == "user":
            told = told[:-1]
        turns = ordered(told, self.tree, self.turns)
        return ConversationRow(row, with_system(turns, self.system))


@dataclass(frozen=True)
class TreePairsFormat(_OfTrees):
    """Pairs of the assistant's replies in the tree in the field `tree`."""

    pairs: str = PAIRS[0]

    makes: ClassVar[type] = PreferenceRow

    def parse(self, record: Mapping[str, Any], row: str) -> list[PreferenceRow]:
        rows: list[PreferenceRow] = []
        for path, replies in _asked(_root(record, self.tree)):
            asked = messages(path, self.tree)
            ranked = [
                (messages([reply], self.tree), -_rank(reply))
                for reply in replies
                if reply.get("rank") is not None
            ]
            names = (f"{self.tree} (better)", f"{self.tree} (worse)")
            for better, worse in pairs_of(ranked, self.pairs):
                label = f"{row}#{len(rows) + 1}"
                one, other = ((*asked, *side) for side, _ in (better, worse))
                rows.append(paired(label, one, other, names, self.system, self.turns))
        if not rows:
            raise MalformedRow("tie", f"no two replies in {self.tree} have different ranks")
        return rows


def _asked(root: Node) -> Iterator[tuple[list[Node], list[Node]]]:
    """The path to each message that has replies, with these, the parents first."""
    left = [[root]]
    while left:
        path = left.pop(0)
        replies = _replies(path[-1])
        if path[-1].get("role") not in ("assistant", "gpt"):
            yield path, replies
        if len(path) < MOST_NESTED:
            left += [[*path, reply] for reply in replies]


def _root(record: Mapping[str, Any], field: str) -> Node:
    if not _is_node(root := found(record, field)):
        raise MalformedRow("no prompt", f"{field} holds no message with text, role and replies")
    return root


def _is_node(value: Any) -> bool:
    return isinstance(value, Mapping) and {"text", "role", "replies"} <= value.keys()


def _replies(node: Node) -> list[Node]:
    """The replies that are there and were not deleted."""
    listed = node.get("replies")
    nodes = listed if is_list(listed) else []
    return [one for one in nodes if isinstance(one, Mapping) and not one.get("deleted")]


def _rank(node: Node) -> float:
    """The rank of a reply; one without comes last."""
    rank = score(node, "rank")
    return float("inf") if rank is None else rank
