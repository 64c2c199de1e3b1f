"""``sample_completions``: sample a model's completions of prompts, as text."""

from pipeline import Metrics, Output, step
from steps.core_adapters.workplace_of import at_work
from steps.data.rows.jsonl import write_json_lines
from steps.generation.config import SamplingConfig
from steps.kinds import Completions, Model, Prompts
from steps.models.config import Dtype


@step(makes=Completions, estimate="steps.step_needs:of_model")
def sample_completions(
    out: Output,
    prompts: Prompts,
    model: Model,
    config: SamplingConfig = SamplingConfig(),
    dtype: Dtype = Dtype.float32,
) -> Metrics:
    """Write ``completions.jsonl``: each prompt with its ``completions``, and for each completion
    its ``finish``: ``stop``, or ``length`` if it was cut at ``max_new_tokens``.

    Completions are sampled as :func:`steps.sample_rollouts.sample_rollouts` samples them. A text
    ends before its stop token and holds no special tokens.
    """
    from steps.generation.sampling import decoded
    from steps.online.recording import draw_rollouts
    from steps.online.rollouts import by_row

    with at_work(out) as place:
        drawn = draw_rollouts(prompts.path, model.path, config, dtype, place)
        if not place.ranks.is_first:
            return {}
        completed = (
            {
                **vars(row),
                "completions": [decoded(drawn.tokenizer, one.ids) for one in completions],
                "finish": [one.finish for one in completions],
            }
            for row, completions in zip(drawn.rows, by_row(drawn.rollouts).values(), strict=True)
        )
        write_json_lines(out.path / "completions.jsonl", completed)
        return drawn.metrics()
