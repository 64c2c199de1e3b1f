"""``reference_logprobs``: compute the frozen reference's logps of each response, once."""

from pipeline import Metrics, Output, step
from steps.core_adapters.own_tokens import tokens_for
from steps.core_adapters.workplace_of import at_work
from steps.data.images.images_of_rows import rows_with_images
from steps.kinds import Model, PairTokens, ReferenceLogps, UnpairedTokens
from steps.scoring.config import ReferenceConfig


@step(makes=ReferenceLogps, estimate="steps.step_needs:of_model")
def reference_logprobs(
    out: Output,
    tokens: PairTokens | UnpairedTokens,
    model: Model,
    config: ReferenceConfig = ReferenceConfig(),
) -> Metrics:
    """Write ``logps-00000.parquet`` and so on: the logps of response tokens, keyed by a digest of
    prompt and response tokens.

    Finished shards stay in scratch, so an interrupted step resumes at the next shard. Dropout is
    off.
    """
    from steps.scoring.reference import run_reference

    with at_work(out) as place:
        rows = rows_with_images(tokens_for(model, tokens))
        return run_reference(model.path, rows, config, place)
