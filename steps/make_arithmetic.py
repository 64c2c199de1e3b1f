"""``make_arithmetic``: generate an arithmetic task with checkable answers and demonstrations."""

from pipeline import Metrics, Output, step
from steps.data.rows.arithmetic import boxed, demonstrations, sample_problems
from steps.data.rows.parquet import write_rows
from steps.kinds import VerifiableTask


@step(makes=VerifiableTask, estimate="steps.prices.of_rows:ARITHMETIC")
def make_arithmetic(out: Output, train: int = 1100, test: int = 500, seed: int = 0) -> Metrics:
    """Write ``sft/conversations-*.parquet`` and ``train/`` and ``test/prompts-*.parquet``.

    :mod:`steps.data.rows.arithmetic` describes the task. Some demonstrations are wrong on purpose.
    The test problems never occur in the training data.
    """
    from steps.data.rows.tables import CONVERSATIONS, PROMPTS, to_record

    problems, held_out = sample_problems(seed, train, test)
    shown = demonstrations(problems, seed)
    write_rows(
        out.path / "sft" / "conversations-00000.parquet", CONVERSATIONS, map(to_record, shown)
    )
    for split, asked in (("train", problems), ("test", held_out)):
        prompts = (to_record(problem.prompt) for problem in asked)
        write_rows(out.path / split / "prompts-00000.parquet", PROMPTS, prompts)
    right = sum(
        demonstration.messages[-1]["content"] == boxed(problem.answer)
        for demonstration, problem in zip(shown, problems, strict=True)
    )
    return {"train": train, "test": test, "demonstrations_right": right}
