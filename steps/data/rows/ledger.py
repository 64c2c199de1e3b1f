"""The row ledger: for every row that was read, whether it was kept, truncated or dropped, and why.

An `Entry` is one line of `ledger.parquet`. A `Tally` summarises many entries: tallies of parts can
be added up, and stored as JSON while a step runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from steps.data.rows.reasons import CHOICES, REST_LOST, MalformedRow, Reason
from steps.shared.counts import share_of
from steps.shared.execution_detail import execution_detail

Outcome = Literal["kept", "truncated", "dropped"]

LONE = "file"
"""The name of a shard that is a whole source. Often no key tells what such a file is called, so
nothing may follow from that: no label of a row, and nothing that is drawn for the row by it."""

ROWS_NAMED = 20
OVER_LIMIT: Reason = "over the limit"


@dataclass(frozen=True)
class Entry:
    """The outcome of a row of the file `source`; the fields are the columns of `tables.LEDGER`."""

    split: str
    source: str
    row: str
    outcome: Outcome
    reason: Reason | None = None
    detail: str | None = None

    @classmethod
    def dropped(cls, split: str, source: str, row: str, problem: MalformedRow) -> "Entry":
        return cls(split, source, row, "dropped", problem.reason, problem.detail)


@dataclass
class DroppedRows:
    """The rows dropped for one reason: their number, the first labels, and one detail."""

    count: int = 0
    rows: list[str] = field(default_factory=list)
    detail: str = ""


@dataclass
class Tally:
    """Rows by outcome, and dropped ones by reason."""

    kept: int = 0
    truncated: int = 0
    dropped: dict[Reason, DroppedRows] = field(default_factory=dict)

    def add(self, entry: Entry) -> int:
        """Count a row; return how many have been dropped."""
        if entry.outcome == "kept":
            self.kept += 1
        elif entry.outcome == "truncated":
            self.truncated += 1
        else:
            assert entry.reason is not None
            self._drop(entry.reason, 1, [entry.row], entry.detail or "")
        return self.dropped_rows

    def merge(self, later: "Tally") -> None:
        """Add the rows of `later`, which follow these."""
        self.kept += later.kept
        self.truncated += later.truncated
        for reason, more in later.dropped.items():
            self._drop(reason, more.count, more.rows, more.detail)

    def _drop(self, reason: Reason, count: int, rows: list[str], detail: str) -> None:
        dropped = self.dropped.setdefault(reason, DroppedRows(detail=detail))
        dropped.count += count
        dropped.rows += rows[: ROWS_NAMED - len(dropped.rows)]

    @property
    def rows(self) -> int:
        return self.kept + self.truncated + self.dropped_rows

    @property
    def dropped_rows(self) -> int:
        return sum(dropped.count for dropped in self.dropped.values())

    @property
    def unusable_rows(self) -> int:
        """The number of rows that were dropped because of a fault, not by choice (`CHOICES`)."""
        return sum(d.count for reason, d in self.dropped.items() if reason not in CHOICES)

    def metrics(self) -> dict[str, Any]:
        """A step's metrics: the number of dropped rows, in total and by reason (with the first 20
        labels of each), and notices. Rows over a limit that the user set are counted separately.
        """
        told = {r: d for r, d in sorted(self.dropped.items()) if r != OVER_LIMIT}
        count = sum(dropped.count for dropped in told.values())
        metrics: dict[str, Any] = {
            "dropped": count,
            "dropped_by_reason": {
                reason: {"count": dropped.count, "rows": dropped.rows}
                for reason, dropped in told.items()
            },
        }
        if OVER_LIMIT in self.dropped:
            metrics["over_the_limit"] = self.dropped[OVER_LIMIT].count
        if told:
            reasons = "; ".join(_phrase(reason, dropped) for reason, dropped in told.items())
            faults = [dropped for reason, dropped in told.items() if reason not in CHOICES]
            worst = max(faults, key=lambda dropped: dropped.count, default=None)
            example = f"; e.g. {worst.detail}" if worst else ""
            metrics["notices"] = [f"{count} of {self.rows} rows dropped: {reasons}{example}"]
        return metrics

    def check(self, max_dropped: float, what: str) -> None:
        """Refuse data with too many unusable rows, or with a file that is not read to its end.

        Args:
            max_dropped: below 1 a fraction of the rows, from 1 on a number of rows. Valid rows that
                were dropped by choice (`reasons.CHOICES`) do not count.
            what: the name of the data, for the error.

        Raises:
            TooManyDropped: more rows than `max_dropped` are unusable, or an unknown number.
        """
        if REST_LOST in self.dropped:
            raise TooManyDropped(_rest_lost(what, self.dropped[REST_LOST]))
        allowed = share_of(max_dropped, self.rows) if max_dropped < 1 else max_dropped
        if self.unusable_rows > allowed:
            raise TooManyDropped(
                f"{self.unusable_rows} of the {self.rows} rows of {what} cannot be used, over the "
                f"limit max_dropped={max_dropped:g}: {self.worst_reasons()}"
            )

    def worst_reasons(self) -> str:
        """The most frequent reasons, each with its first rows and one detail."""
        faults = [(r, d) for r, d in self.dropped.items() if r not in CHOICES]
        faults.sort(key=lambda fault: -fault[1].count)
        return "; ".join(f"{_phrase(reason, d)}, e.g. {d.detail}" for reason, d in faults[:3])

    def to_json(self) -> dict[str, Any]:
        return {
            "kept": self.kept,
            "truncated": self.truncated,
            "dropped": {r: [d.count, d.rows, d.detail] for r, d in self.dropped.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Tally":
        dropped = {reason: DroppedRows(*parts) for reason, parts in data["dropped"].items()}
        return cls(data["kept"], data["truncated"], dropped)


class TooManyDropped(ValueError):
    """More rows are unusable than the user allows."""


def check_max_dropped(max_dropped: float) -> None:
    """Check the limit of unusable rows.

    Raises:
        ValueError: the limit is negative, not a number, or above 1 and not whole.
    """
    if not max_dropped >= 0 or (max_dropped > 1 and not float(max_dropped).is_integer()):
        raise ValueError(
            f"max_dropped must be a fraction below 1 or a whole number of rows, got {max_dropped}"
        )


@execution_detail
def _rest_lost(what: str, dropped: DroppedRows) -> str:
    files = f"{'a file' if dropped.count == 1 else f'{dropped.count} files'} of {what}"
    places = f"{', '.join(dropped.rows[:3])}: "
    if dropped.count == 1 and dropped.rows[0].startswith(f"{LONE}:"):  # `what` is its name
        files, places = what, ""
    return (
        f"{files} could not be read to the end, and how many rows are lost is not known: "
        f"{places}{dropped.detail}; get the whole file again, or mend it"
    )


def _phrase(reason: str, dropped: DroppedRows) -> str:
    more = ", …" if dropped.count > 3 else ""
    return f"{reason}: {dropped.count} ({', '.join(dropped.rows[:3])}{more})"
