"""``select_pairs``: better and worse completions of a prompt, to be compared."""

from pipeline import Metrics, Output, TemperError, step
from steps.kinds import Judged, PairTokens
from steps.online.selecting import Pairs


@step(makes=PairTokens)
def select_pairs(out: Output, rollouts: Judged, how: Pairs = Pairs()) -> Metrics:
    """Write ``tokens-00000.parquet``, for ``train_dpo`` and other trainers of pairs: token ids as
    they were drawn. What was cut or has no reward is left out.

    One round of iterative DPO is ``sample_rollouts``, ``judge``, this, ``reference_logprobs`` and
    ``train_dpo``.

    Raises:
        TemperError: no prompt has completions of different rewards.
    """
    from steps.online.selecting import write_pairs

    try:
        return write_pairs(rollouts.path, how, out.path)
    except ValueError as error:
        raise TemperError(str(error)) from error
