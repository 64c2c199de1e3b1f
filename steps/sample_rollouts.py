"""``sample_rollouts``: sample a policy's completions of prompts, as token ids."""

from pipeline import Metrics, Output, step
from steps.generation.config import SamplingConfig
from steps.glue.workplace_of import at_work
from steps.kinds import Model, Prompts, Rollouts
from steps.models.config import Dtype


@step(makes=Rollouts)
def sample_rollouts(
    out: Output,
    prompts: Prompts,
    model: Model,
    config: SamplingConfig = SamplingConfig(temperature=1.0),
    dtype: Dtype = Dtype.float32,
) -> Metrics:
    """Write ``rollouts-*.parquet``: for each prompt ``config.num_completions`` completions, as
    token ids with their logps and finish reason; beside them the prompts, the tokenizer and a
    record of the sampling engine.

    Prompts are rendered like training data, with their tools and template arguments. A prompt that
    the model's chat template refuses is left out, and a notice names it. Finished completions stay
    in scratch, so an interrupted step samples only the missing ones.
    """
    from steps.online.recording import draw_rollouts, write_recording

    with at_work(out) as place:
        drawn = draw_rollouts(prompts.path, model.path, config, dtype, place)
        if not place.ranks.is_first:
            return {}
        write_recording(out.path, drawn, model.path)
        return drawn.metrics()
