"""``filter_pairs``: keep preference pairs of sufficient score margin and of suitable lengths."""

import json
import math
from dataclasses import dataclass, field
from functools import partial

from pipeline import Metrics, Output, step
from steps.data.load.language import Languages
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Messages, PreferenceRow
from steps.kinds import Preferences
from steps.shared.checks import require, require_count


@dataclass(frozen=True)
class FilterConfig:
    """Which pairs stay. A criterion that is not set filters nothing.

    Args:
        min_margin: by how much the chosen side's score must be higher; pairs without scores go.
        min_characters, max_characters: of each response: the text that the assistant writes, and
            its calls of tools as JSON.
        max_length_ratio: of the longer response to the shorter one, in characters.
        splits: which splits are filtered; the others stay as they are.
        languages: those of pairs that stay; prompt and both responses must be in one of them.
    """

    min_margin: float | None = None
    min_characters: int = 0
    max_characters: int | None = None
    max_length_ratio: float | None = None
    splits: tuple[str, ...] = ("train",)
    languages: Languages | None = field(default=None, metadata={"before": None})

    def __post_init__(self) -> None:
        margin, ratio = self.min_margin, self.max_length_ratio
        require(
            margin is None or math.isfinite(margin), "min_margin must be finite or null", margin
        )
        require_count(self, "min_characters", least=0)
        require_count(self, "max_characters", least=max(1, self.min_characters), or_null=True)
        require(ratio is None or ratio >= 1, "max_length_ratio must be 1 or more, or null", ratio)
        require(len(self.splits) > 0, "splits must name a split, as in ('train',)", self.splits)


@step(makes=Preferences)
def filter_pairs(out: Output, pairs: Preferences, config: FilterConfig = FilterConfig()) -> Metrics:
    """Write the pairs that satisfy ``config``, and ``ledger.parquet``.

    Raises:
        TemperError: a split has no pairs left.
    """
    from steps.core_adapters.kept_rows import keep_rows

    return keep_rows(out, pairs, PreferenceRow, config.splits, partial(_check, config))


def _check(config: FilterConfig, row: PreferenceRow) -> None:
    """Raises why a pair does not stay."""
    if config.languages is not None:
        config.languages.check(row)
    if config.min_margin is not None:
        if row.score_chosen is None or row.score_rejected is None:
            raise MalformedRow("margin too small", "a side has no score")
        if (margin := row.score_chosen - row.score_rejected) < config.min_margin:
            raise MalformedRow("margin too small", f"{margin:g}, below {config.min_margin:g}")
    sizes = [_characters(row.chosen), _characters(row.rejected)]
    if min(sizes) < config.min_characters:
        raise MalformedRow("response too short", f"{min(sizes)} characters")
    if config.max_characters is not None and max(sizes) > config.max_characters:
        raise MalformedRow("response too long", f"{max(sizes)} characters")
    ratio = max(sizes) / max(1, min(sizes))
    if config.max_length_ratio is not None and ratio > config.max_length_ratio:
        raise MalformedRow("lengths too different", f"one response is {ratio:.1f} times the other")


def _characters(messages: Messages) -> int:
    own = [message for message in messages if message["role"] == "assistant"]
    calls = (json.dumps(made, ensure_ascii=False) for m in own if (made := m.get("tool_calls")))
    return sum(len(message["content"]) for message in own) + sum(map(len, calls))
