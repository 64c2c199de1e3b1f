"""``make_sums``: a task of several steps, with demonstrations that use a calculator."""

from pipeline import Metrics, Output, step
from steps.data.rows.parquet import write_rows
from steps.data.rows.sums import patient_demonstrations, sample_sums
from steps.kinds import VerifiableTask


@step(makes=VerifiableTask, estimate="steps.prices.of_rows:SUMS")
def make_sums(out: Output, train: int = 1100, test: int = 500, seed: int = 0) -> Metrics:
    """Write ``sft/conversations-*.parquet`` and ``train/`` and ``test/prompts-*.parquet``.

    See :mod:`steps.data.rows.sums` for the task; held-out questions are never shown in training.
    """
    from steps.data.rows.arithmetic import boxed
    from steps.data.rows.tables import CONVERSATIONS, PROMPTS, to_record

    sums, held_out = sample_sums(seed, train, test)
    shown = patient_demonstrations(sums, seed)
    write_rows(
        out.path / "sft" / "conversations-00000.parquet", CONVERSATIONS, map(to_record, shown)
    )
    for split, asked in (("train", sums), ("test", held_out)):
        prompts = (to_record(question.prompt) for question in asked)
        write_rows(out.path / split / "prompts-00000.parquet", PROMPTS, prompts)
    right = sum(
        demonstration.messages[-1]["content"] == boxed(str(sum(question.numbers)))
        for demonstration, question in zip(shown, sums, strict=True)
    )
    return {"train": train, "test": test, "demonstrations_right": right}
