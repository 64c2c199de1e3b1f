"""``teacher_logprobs``: compute a teacher's distribution at each scored token, once."""

from pipeline import Metrics, Output, step
from steps.core_adapters.own_tokens import demonstrations_for
from steps.core_adapters.workplace_of import at_work
from steps.distillation.config import TeacherConfig
from steps.kinds import ConversationTokens, Model, PairTokens, TeacherLogps


@step(makes=TeacherLogps, estimate="steps.step_needs:of_model", added={"context": None})
def teacher_logprobs(
    out: Output,
    tokens: PairTokens | ConversationTokens,
    teacher: Model,
    config: TeacherConfig = TeacherConfig(),
    context: ConversationTokens | None = None,
) -> Metrics:
    """Write ``teacher-00000.parquet`` and so on: the log-probability of each scored token, the
    likeliest tokens there with theirs, and the mass of all others.

    Finished files stay in scratch, so an interrupted step resumes at the next file. Dropout is
    off.

    Args:
        tokens: conversations; or preference pairs, of which only the chosen responses are used.
        teacher: a model with the vocabulary of the student. Its head may have more rows.
        context: the same rows with the same answers behind other prompts, which the teacher reads
            in place of ``tokens``. The distribution is that of each row of ``tokens``.

    Raises:
        ValueError: the teacher has another vocabulary; a row of ``context`` is another row, or has
            another answer.
    """
    from steps.distillation.cached_teacher import run_teacher

    with at_work(out) as place:
        records = demonstrations_for(teacher, tokens)
        seen = None if context is None else demonstrations_for(teacher, context)
        return run_teacher(teacher.path, records, config, place, tokens.path, seen)
