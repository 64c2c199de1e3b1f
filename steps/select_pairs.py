"""``select_pairs``: pair better with worse completions of the same prompt."""

from pipeline import Metrics, Output, TemperError, step
from steps.kinds import Judged, PairTokens
from steps.online.selection import Pairs


@step(makes=PairTokens)
def select_pairs(out: Output, rollouts: Judged, how: Pairs = Pairs()) -> Metrics:
    """Write ``tokens-00000.parquet``, for ``train_dpo`` and other steps that train on pairs. It
    holds the sampled token ids. Completions that were cut or have no reward are left out.
    ``ledger.parquet`` says of each completion whether it is used, or why not.

    One round of iterative DPO consists of ``sample_rollouts``, ``judge``, this step,
    ``reference_logprobs`` and ``train_dpo``.

    Raises:
        TemperError: no prompt has completions of different rewards.
    """
    from steps.online.selecting import write_pairs

    try:
        return write_pairs(rollouts.path, how, out.path)
    except ValueError as error:
        raise TemperError(str(error)) from error
