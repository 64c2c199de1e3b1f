"""``select_demonstrations``: select the best completions of each prompt, for ``train_sft``."""

from pipeline import Metrics, Output, TemperError, step
from steps.kinds import ConversationTokens, Judged
from steps.online.selection import Best


@step(makes=ConversationTokens)
def select_demonstrations(out: Output, rollouts: Judged, how: Best = Best()) -> Metrics:
    """Write ``tokens-00000.parquet``, for ``train_sft``: prompts with the sampled token ids of
    their completions. Training covers the completions only. Completions that were cut or have no
    reward are left out. ``ledger.parquet`` says of each completion whether it is used, or why not.

    One round of rejection-sampling fine-tuning consists of ``sample_rollouts``, ``judge``, this
    step and ``train_sft``.

    Raises:
        TemperError: no completion is good enough.
    """
    from steps.online.selecting import write_demonstrations

    try:
        return write_demonstrations(rollouts.path, how, out.path)
    except ValueError as error:
        raise TemperError(str(error)) from error
