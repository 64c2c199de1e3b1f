"""``compare_distributions``: how far a student's distribution is from a teacher's."""

from pipeline import Metrics, Output, step
from steps.data.rows.jsonl import write_json_lines
from steps.kinds import ComparedDistributions, TeacherLogps


@step(makes=ComparedDistributions)
def compare_distributions(out: Output, student: TeacherLogps, teacher: TeacherLogps) -> Metrics:
    """Return means over all scored tokens, in nats; write ``positions.jsonl`` with the same for the
    first scored token of each row, the second, and so on.

    ``forward_kl`` is KL(teacher ‖ student), ``reverse_kl`` KL(student ‖ teacher), and ``agreement``
    the share of tokens at which both find the same token likeliest. KLs and entropies are lower
    bounds, exact where ``top_k`` is the vocabulary: tokens that are not kept are one bucket. The
    lower ``shared_mass`` is, the teacher's mass on tokens that both keep, the looser are KLs.

    Args:
        student: the output of :func:`steps.teacher_logprobs.teacher_logprobs` for the student.
        teacher: the same for the teacher, of the same tokens.

    Raises:
        ValueError: the two are not of the same rows and tokens.
    """
    from steps.distillation.distributions_compared import compare

    metrics, positions = compare(student.path, teacher.path)
    write_json_lines(out.path / "positions.jsonl", positions)
    return metrics
