"""What was left out, as a step reports it: how many, why, and which rows."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from steps.data.preferences import DroppedRow

ROWS_NAMED = 20


def dropped_metrics(dropped: Sequence[DroppedRow], total: int) -> dict[str, Any]:
    """Metrics over dropped rows: the count, rows by reason (the first 20 of each), one notice."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for entry in dropped:
        by_reason[entry.reason].append(entry.row)
    metrics: dict[str, Any] = {
        "dropped": len(dropped),
        "dropped_by_reason": {
            reason: {"count": len(rows), "rows": rows[:ROWS_NAMED]}
            for reason, rows in sorted(by_reason.items())
        },
    }
    if dropped:
        reasons = "; ".join(
            f"{reason}: {len(rows)} ({', '.join(rows[:3])}{', …' if len(rows) > 3 else ''})"
            for reason, rows in sorted(by_reason.items())
        )
        metrics["notices"] = [f"{len(dropped)} of {total} rows dropped: {reasons}"]
    return metrics
