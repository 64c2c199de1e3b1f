"""``sample_rollouts``: sample a policy's completions of prompts, as token ids."""

from pipeline import Metrics, Output, step
from steps.checking.config import JudgeConfig
from steps.core_adapters.workplace_of import at_work
from steps.environments.environment import Environment
from steps.generation.config import SamplingConfig
from steps.generation.engine_config import EngineConfig, OwnEngine
from steps.kinds import Model, Prompts, Rollouts
from steps.models.config import Dtype


@step(makes=Rollouts, estimate="steps.step_needs:of_model")
def sample_rollouts(
    out: Output,
    prompts: Prompts,
    model: Model,
    config: SamplingConfig = SamplingConfig(temperature=1.0),
    dtype: Dtype = Dtype.float32,
    engine: EngineConfig = OwnEngine(),
    environment: Environment | None = None,
    judging: JudgeConfig = JudgeConfig(),
) -> Metrics:
    """Write ``rollouts-*.parquet``: for each prompt ``config.num_completions`` completions, as
    token ids with their logps and finish reason; beside them the prompts, the tokenizer and a
    record of the sampling engine.

    Prompts are rendered as the training data is, with their tools and template arguments. One that
    is over ``config.max_prompt_length``, or that the model's chat template refuses, is left out,
    and told. Finished completions are kept in scratch, so an interrupted run goes on with what is
    missing.

    Args:
        engine: who draws: this process, or engines elsewhere.
        environment: replies to the policy's turns: completions are episodes then, and those that it
            judges for itself have a verdict.
        judging: how long a reply may take, in how many processes, and how many episodes may fail.
    """
    from steps.environments.playing import replying
    from steps.online.recording import draw_rollouts, write_recording
    from steps.online.rewarding.judging import require_verdicts

    with at_work(out) as place, replying(environment, judging) as replies:
        drawn = draw_rollouts(prompts.path, model.path, config, dtype, place, engine, replies)
        if not place.ranks.is_first:
            return {}
        require_verdicts(drawn.rollouts, judging.most_without)
        write_recording(out.path, drawn, model.path)
        return drawn.metrics()
