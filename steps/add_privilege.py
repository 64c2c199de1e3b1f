"""``add_privilege``: show a teacher more than the student was shown, for self-distillation."""

from pipeline import Metrics, Output, TemperError, step
from steps.kinds import ConversationTokens, Judged, Model
from steps.online.selection import Best

TEMPLATE = """\
{prompt}

This is the right answer:

{answer}

Now answer in your own words."""


@step(makes=ConversationTokens)
def add_privilege(
    out: Output,
    rollouts: Judged,
    tokenizer: Model,
    how: Best = Best(least_reward=None, per_prompt=None),
    template: str = TEMPLATE,
) -> Metrics:
    """Write what :func:`steps.select_demonstrations.select_demonstrations` writes of the same
    rollouts by the same `how`, behind prompts that say more. Rows, order and the tokens of answers
    are the same, so ``teacher_logprobs(tokens, teacher, context=…)`` takes it as what a teacher
    sees.

    Args:
        tokenizer: the model that sampled the rollouts.
        template: the last message of a prompt. It has {prompt}, the message itself, and {answer} of
            the row (which ``fields.answer`` reads from any column, such as hints), {feedback}, the
            reason of the completion's verdict, or both.

    Raises:
        TemperError: a row lacks such a text, or no completion is good enough.
    """
    from steps.online.selecting import with_privilege, write_demonstrations

    if not any(place in template for place in ("{answer}", "{feedback}")):
        raise TemperError("template must have {answer} or {feedback} in it")
    try:
        asked = with_privilege(rollouts.path, tokenizer.path, template)
        return write_demonstrations(rollouts.path, how, out.path, asked)
    except ValueError as error:
        raise TemperError(str(error)) from error
