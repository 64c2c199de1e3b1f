"""``prompts_of_pairs``: the prompts of preference pairs, for a model to answer."""

import json
from collections.abc import Iterator
from pathlib import Path

from pipeline import Metrics, Output, TemperError, step
from steps.data.images.image_table import IMAGES
from steps.data.rows.parquet import iter_rows, write_rows
from steps.data.rows.rows import PreferenceRow, PromptRow
from steps.kinds import Preferences, PromptSplits


@step(makes=PromptSplits)
def prompts_of_pairs(out: Output, pairs: Preferences) -> Metrics:
    """Write ``SPLIT/prompts-00000.parquet`` for every split of ``pairs``.

    A prompt of several pairs is written once, under the name of its first pair. The rows may be
    spelled in any format that :func:`steps.load_preferences.load_preferences` reads.

    Raises:
        TemperError: there are no pairs, or they have images.
    """
    from steps.data.rows.tables import PROMPTS, shard_name, to_record

    splits = sorted({path.parent for path in pairs.path.glob("*/pairs-*.parquet")})
    if not splits:
        raise TemperError(f"{pairs.step} holds no SPLIT/pairs-*.parquet; pass the whole artifact")
    if any((split / IMAGES).is_dir() for split in splits):
        raise TemperError(
            f"the pairs of {pairs.step} have images, and prompts to answer have none; load them "
            "without data.images"
        )
    return {
        split.name: write_rows(
            out.path / split.name / shard_name(PromptRow, 0), PROMPTS, map(to_record, _asked(split))
        )
        for split in splits
    }


def _asked(split: Path) -> Iterator[PromptRow]:
    from steps.data.rows.tables import from_record

    seen: set[str] = set()
    for record in iter_rows(split):
        pair = from_record(PreferenceRow, record)
        content = json.dumps([pair.prompt, pair.tools, pair.template_kwargs])
        if content not in seen:
            seen.add(content)
            yield PromptRow(
                pair.row, pair.prompt, tools=pair.tools, template_kwargs=pair.template_kwargs
            )
