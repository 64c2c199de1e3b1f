"""``decontaminate``: remove preference pairs that overlap with an evaluation set."""

from pathlib import Path

from pipeline import Artifact, Metrics, Output, TemperError, step
from steps.data.load.overlap import NGRAM_WORDS, EvaluationSet, texts_of
from steps.data.rows.parquet import iter_rows
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import PreferenceRow
from steps.kinds import Preferences


@step(makes=Preferences, estimate="steps.prices.of_rows:REST_OF_PAIRS")
def decontaminate(
    out: Output,
    pairs: Preferences,
    against: Artifact,
    n: int = NGRAM_WORDS,
    splits: tuple[str, ...] = ("train",),
) -> Metrics:
    """Write ``pairs`` without those that share ``n`` consecutive words with a text of ``against``.

    Args:
        against: the output of a ``load_`` step, or one part of it, such as ``pairs["test"]``.
        splits: which splits of ``pairs`` are cleaned; the others are copied unchanged.

    Raises:
        TemperError: ``against`` holds no rows, or a split has no pairs left.
    """
    from steps.glue.kept_pairs import keep_pairs

    evaluation = EvaluationSet(n)
    evaluated = _add_rows(evaluation, against.path)
    if not evaluated:
        raise TemperError(f"{against.step} holds no rows to compare with; pass what it loaded")

    def check(row: PreferenceRow) -> None:
        if (shared := evaluation.overlap(texts_of(row))) is not None:
            raise MalformedRow("overlaps evaluation", shared)

    return {"evaluation_rows": evaluated, **keep_pairs(out, pairs, splits, check)}


def _add_rows(evaluation: EvaluationSet, folder: Path) -> int:
    from steps.data.rows.tables import STEMS, from_record

    count = 0
    for kind, stem in STEMS.items():
        for path in sorted(folder.rglob(f"{stem}-*.parquet")):
            for record in iter_rows(path):
                evaluation.add(record["row"], texts_of(from_record(kind, record)))
                count += 1
    return count
