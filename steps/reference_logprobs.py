"""``reference_logprobs``: what the frozen reference thinks of each response, computed once."""

from pipeline import Metrics, Output, step
from steps.data.images.of_tokens import rows_with_images
from steps.glue.workplace_of import at_work
from steps.kinds import Model, PairTokens, ReferenceLogps, UnpairedTokens
from steps.scoring.config import ReferenceConfig


@step(makes=ReferenceLogps, estimate="steps.prices.of_training:SCORED")
def reference_logprobs(
    out: Output,
    tokens: PairTokens | UnpairedTokens,
    model: Model,
    config: ReferenceConfig = ReferenceConfig(),
) -> Metrics:
    """Write ``logps-00000.parquet`` and so on: logps of response tokens, keyed by their tokens.

    Finished shards are kept in scratch, so an interrupted computation goes on from the shard it
    was at. Dropout is off.
    """
    from steps.scoring.reference import run_reference

    with at_work(out) as place:
        return run_reference(
            model.path,
            rows_with_images(tokens.path),
            config,
            place,
        )
