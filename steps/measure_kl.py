"""``measure_kl``: estimate KL(model‖reference) from responses that the model samples."""

from pipeline import Metrics, Output, step
from steps.core_adapters.own_tokens import tokens_for
from steps.data.rows.jsonl import write_json_lines
from steps.data.rows.parquet import read_rows
from steps.evaluation.config import KlConfig
from steps.kinds import Divergence, Model, PairTokens


@step(makes=Divergence, estimate="steps.step_needs:of_model")
def measure_kl(
    out: Output, tokens: PairTokens, model: Model, reference: Model, config: KlConfig = KlConfig()
) -> Metrics:
    """Write ``kl.jsonl``: the length of each sampled response and its logps under both models.
    Return KL(model‖reference) per response and per token, in nats, with 95 % intervals over prompts
    (over responses, of a single prompt).

    Responses end at ``max_new_tokens`` at the latest, so this is the divergence over at most that
    many tokens.
    """
    from steps.evaluation.divergence import divergence
    from steps.evaluation.own_samples import score_own_samples
    from steps.models.ranks import together

    with together() as ranks:
        drawn = score_own_samples(
            read_rows(tokens_for(model, tokens)),
            model.path,
            reference.path,
            config,
            out.progress,
            ranks,
        )
    if not ranks.is_first:
        return {}
    write_json_lines(out.path / "kl.jsonl", drawn)
    prompts = {one["row"] for one in drawn}
    return {**divergence(drawn), "prompts": len(prompts), "responses": len(drawn)}
