"""``decontaminate``: remove training rows that overlap with an evaluation set.

There is a step for each kind of row, since a step makes one kind of artifact: ``decontaminate``
for preference pairs, and ``decontaminate_conversations``, ``_prompts``, ``_unpaired`` and
``_texts``. All of them write the rows of the first argument that share no ``n`` consecutive words
with a text of ``against``, and ``ledger.parquet``, which names what the others share.

Args:
    against: the output of any ``load_`` step, or one part of it, such as ``pairs["test"]``.
    n: how many words in a row count as an overlap.
    splits: which splits are cleaned; the others are copied unchanged.

Raises:
    TemperError: ``against`` holds no rows, or a split has no rows left.
"""

from pathlib import Path

from pipeline import Artifact, Metrics, Output, TemperError, step
from steps.data.load.overlap import NGRAM_WORDS, EvaluationSet, texts_of
from steps.data.rows.parquet import iter_rows
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import (
    ConversationRow,
    PreferenceRow,
    PromptRow,
    Row,
    TextRow,
    UnpairedRow,
)
from steps.kinds import ConversationSplits, Preferences, PromptSplits, TextSplits, UnpairedSplits


@step(makes=Preferences)
def decontaminate(
    out: Output,
    pairs: Preferences,
    against: Artifact,
    n: int = NGRAM_WORDS,
    splits: tuple[str, ...] = ("train",),
) -> Metrics:
    """Preference pairs without overlap; see the module. A pair goes if its prompt or either of its
    responses overlaps."""
    return _decontaminated(out, pairs, PreferenceRow, against, n, splits)


@step(makes=ConversationSplits)
def decontaminate_conversations(
    out: Output,
    conversations: ConversationSplits,
    against: Artifact,
    n: int = NGRAM_WORDS,
    splits: tuple[str, ...] = ("train",),
) -> Metrics:
    """Conversations without overlap; see the module. One goes if any of its messages overlaps,
    other than a system prompt."""
    return _decontaminated(out, conversations, ConversationRow, against, n, splits)


@step(makes=PromptSplits)
def decontaminate_prompts(
    out: Output,
    prompts: PromptSplits,
    against: Artifact,
    n: int = NGRAM_WORDS,
    splits: tuple[str, ...] = ("train",),
) -> Metrics:
    """Prompts without overlap; see the module. Their answers are not compared."""
    return _decontaminated(out, prompts, PromptRow, against, n, splits)


@step(makes=UnpairedSplits)
def decontaminate_unpaired(
    out: Output,
    unpaired: UnpairedSplits,
    against: Artifact,
    n: int = NGRAM_WORDS,
    splits: tuple[str, ...] = ("train",),
) -> Metrics:
    """Labelled completions without overlap; see the module. A row goes if its prompt or its
    completion overlaps."""
    return _decontaminated(out, unpaired, UnpairedRow, against, n, splits)


@step(makes=TextSplits)
def decontaminate_texts(
    out: Output,
    texts: TextSplits,
    against: Artifact,
    n: int = NGRAM_WORDS,
    splits: tuple[str, ...] = ("train",),
) -> Metrics:
    """Plain texts without overlap; see the module. A text goes as a whole."""
    return _decontaminated(out, texts, TextRow, against, n, splits)


def _decontaminated(
    out: Output,
    rows: Artifact,
    kind: type[Row],
    against: Artifact,
    n: int,
    splits: tuple[str, ...],
) -> Metrics:
    from steps.core_adapters.kept_rows import keep_rows

    evaluation = EvaluationSet(n)
    evaluated = _add_rows(evaluation, against.path)
    if not evaluated:
        raise TemperError(f"{against.step} holds no rows to compare with; pass what it loaded")

    def check(row: Row) -> None:
        if (shared := evaluation.overlap(texts_of(row))) is not None:
            raise MalformedRow("overlaps evaluation", shared)

    return {"evaluation_rows": evaluated, **keep_rows(out, rows, kind, splits, check)}


def _add_rows(evaluation: EvaluationSet, folder: Path) -> int:
    from steps.data.rows.tables import STEMS, from_record

    count = 0
    for kind, stem in STEMS.items():
        for path in sorted(folder.rglob(f"{stem}-*.parquet")):
            for record in iter_rows(path):
                evaluation.add(record["row"], texts_of(from_record(kind, record)))
                count += 1
    return count
