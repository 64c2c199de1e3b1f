"""``synthesize``: completions of prompts from any OpenAI-compatible address, as text."""

from pipeline import Metrics, Output, TemperError, step
from steps.generation.remote.synthesis_config import SynthesisConfig
from steps.kinds import Completions, Prompts


@step(makes=Completions)
def synthesize(out: Output, prompts: Prompts, config: SynthesisConfig) -> Metrics:
    """Write ``completions.jsonl``, as :func:`steps.sample_completions.sample_completions` does,
    from the replies of a server of vLLM or ``temper serve``, or of a paid API.

    Each reply is stored as it comes. So an interrupted step, even one that was killed, asks for the
    rest only, as does one whose budget was raised. Another prompt or setting that bears on replies
    is another step, which asks for all.

    Raises:
        TemperError: the budget is spent, or too many prompts go without a completion.
    """
    from steps.generation.remote import synthesis

    def progress(done: int, total: int) -> None:
        out.progress(done, total)

    places = (out.path, out.scratch)
    try:
        return synthesis.synthesize(prompts.path, config, *places, progress, lambda: out.stopping)
    except ValueError as error:
        raise TemperError(str(error)) from error
