"""``select_demonstrations``: the best completions of each prompt, to be imitated."""

from pipeline import Metrics, Output, TemperError, step
from steps.kinds import ConversationTokens, Judged
from steps.online.selecting import Best


@step(makes=ConversationTokens)
def select_demonstrations(out: Output, rollouts: Judged, how: Best = Best()) -> Metrics:
    """Write ``tokens-00000.parquet``, for ``train_sft``: prompts with the token ids that were drawn
    after them, trained on what the policy drew. What was cut or has no reward is left out.

    One round of rejection-sampling fine-tuning is ``sample_rollouts``, ``judge``, this and
    ``train_sft``.

    Raises:
        TemperError: no completion is good enough.
    """
    from steps.online.selecting import write_demonstrations

    try:
        return write_demonstrations(rollouts.path, how, out.path)
    except ValueError as error:
        raise TemperError(str(error)) from error
