"""``train_sft``: supervised fine-tuning on conversations, or on the chosen responses of pairs; or
distillation, where a teacher's distribution is known at their tokens."""

from pipeline import Metrics, Output, TemperError, step
from steps.core_adapters.own_tokens import demonstrations_for, with_template_of
from steps.core_adapters.workplace_of import at_work
from steps.kinds import ConversationTokens, Model, PairTokens, TeacherLogps
from steps.losses.base import SftLoss
from steps.losses.distillation.distillation_loss import DistillationLoss
from steps.losses.imitation.sft import Sft
from steps.training.config import TrainConfig

_ADDED = {"loss": Sft(), "teacher": None, "held_out_teacher": None}


@step(
    makes=Model,
    estimate="steps.step_needs:of_model",
    added=_ADDED,
    rests_on="steps.core_adapters.workplace_of:base_of_adapters",
)
def train_sft(
    out: Output,
    tokens: PairTokens | ConversationTokens,
    init: Model,
    config: TrainConfig = TrainConfig(),
    held_out: PairTokens | ConversationTokens | None = None,
    loss: SftLoss | DistillationLoss = Sft(),
    teacher: TeacherLogps | None = None,
    held_out_teacher: TeacherLogps | None = None,
) -> Metrics:
    """Write a model folder and ``metrics.jsonl``. An interrupted step resumes from its last
    checkpoint.

    Args:
        tokens: conversations; or preference pairs, of which only the chosen responses are used.
        init: the model to start from.
        held_out: other conversations or pairs, for evaluation during training.
        loss: of the tokens; by default their negative log-likelihood.
        teacher: the distribution at the same tokens, from
            :func:`steps.teacher_logprobs.teacher_logprobs`, for a loss such as ``ForwardKl()``.
        held_out_teacher: the same at the tokens of ``held_out``.
    """
    _require_teacher(loss, teacher, held_out, held_out_teacher)
    with at_work(out, init) as place:
        from steps.training.recipes import run_sft

        records = demonstrations_for(init, tokens)
        evaluated = None if held_out is None else demonstrations_for(init, held_out)
        if isinstance(loss, DistillationLoss) and teacher is not None:
            from steps.distillation.distilled import run_distilled

            both = None
            if evaluated is not None and held_out_teacher is not None:
                both = evaluated, held_out_teacher.path
            metrics = run_distilled(init.path, records, config, place, loss, teacher.path, both)
        else:
            assert isinstance(loss, SftLoss)
            metrics = run_sft(init.path, records, config, place, evaluated, loss)
        return with_template_of(tokens, place, metrics)


def _require_teacher(
    loss: SftLoss | DistillationLoss,
    teacher: TeacherLogps | None,
    held_out: PairTokens | ConversationTokens | None,
    held_out_teacher: TeacherLogps | None,
) -> None:
    """Raise TemperError unless there is a teacher for what a loss reads, and for nothing else."""
    if isinstance(loss, SftLoss):
        if teacher is not None or held_out_teacher is not None:
            raise TemperError(
                f"the loss {loss.name} needs no teacher; leave teacher out, or give a loss of "
                "steps.losses.distillation"
            )
    elif teacher is None or (held_out is None) != (held_out_teacher is None):
        missing = "teacher" if teacher is None else "held_out_teacher, or held_out,"
        raise TemperError(
            f"{missing} is missing for the loss {loss.name}; compute it by teacher_logprobs from "
            "the same tokens"
        )
