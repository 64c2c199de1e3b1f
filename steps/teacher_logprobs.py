"""``teacher_logprobs``: compute a teacher's distribution at each scored token, once."""

from pipeline import Metrics, Output, step
from steps.core_adapters.own_tokens import demonstrations_for
from steps.core_adapters.workplace_of import at_work
from steps.distillation.config import TeacherConfig
from steps.kinds import ConversationTokens, Model, PairTokens, TeacherLogps


@step(makes=TeacherLogps, estimate="steps.step_needs:of_model")
def teacher_logprobs(
    out: Output,
    tokens: PairTokens | ConversationTokens,
    teacher: Model,
    config: TeacherConfig = TeacherConfig(),
) -> Metrics:
    """Write ``teacher-00000.parquet`` and so on: the log-probability of each scored token, the
    likeliest tokens there with theirs, and the mass of all others.

    Finished files stay in scratch, so an interrupted step resumes at the next file. Dropout is
    off.

    Args:
        tokens: conversations; or preference pairs, of which only the chosen responses are used.
        teacher: a model with the vocabulary of the student. Its head may have more rows.
    """
    from steps.distillation.cached_teacher import run_teacher

    with at_work(out) as place:
        records = demonstrations_for(teacher, tokens)
        return run_teacher(teacher.path, records, config, place, tokens.path)
