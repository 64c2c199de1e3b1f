"""``evaluate``: measure a model on held-out pairs, by its logps and by its answers."""

import json
from dataclasses import asdict

from pipeline import Metrics, Output, step
from steps.core_adapters.own_tokens import tokens_for
from steps.core_adapters.workplace_of import at_work
from steps.data.images.images_of_rows import rows_with_images
from steps.data.rows.jsonl import read_json_lines, write_json_lines
from steps.evaluation.config import EvaluateConfig
from steps.kinds import Evaluation, Model, PairTokens
from steps.losses.base import PreferenceLoss


@step(makes=Evaluation, estimate="steps.step_needs:of_model")
def evaluate(
    out: Output,
    tokens: PairTokens,
    model: Model,
    config: EvaluateConfig = EvaluateConfig(),
    baseline: Evaluation | None = None,
    loss: PreferenceLoss | None = None,
    baseline_model: Model | None = None,
) -> Metrics:
    """Write logps, ``answers.jsonl`` and ``metrics.json``.

    With a baseline, also write ``summary.md``; with a baseline and a loss, ``calibration.jsonl``:
    the share of pairs ranked right, in bins of the probability that their margins predict.

    Args:
        tokens: held-out pairs.
        baseline: the evaluation of the reference model on the same pairs. Without one, the model
            is its own reference: a loss with a reference then gives every response reward 0.
        loss: defines the rewards of responses and ``eval_loss``. A model that is its own reference
            needs no loss; its evaluation then does not depend on a loss's code.
        baseline_model: the model of the baseline. Where prompts are answered, the model also
            samples one response to each at temperature 1, and both models score it:
            ``sampled/kl`` and ``sampled/kl_per_token`` as in `measure_kl`. This takes about as long
            as the answers once more, and one more model is loaded.
    """
    from steps.evaluation import answers as held_out
    from steps.evaluation.calibration import reliability
    from steps.evaluation.divergence import divergence, writing
    from steps.evaluation.own_samples import score_own_samples
    from steps.evaluation.preferences import preference_metrics, reward_margins
    from steps.models.folders import load_model
    from steps.scoring.reference import run_reference
    from steps.shared.harm import far_from, stopped_ending

    records = list(rows_with_images(tokens_for(model, tokens)))
    with at_work(out) as place:
        shared = config.backend is None and place.ranks.count == 1
        loaded = load_model(model.path, config.dtype) if shared else None
        scored = run_reference(model.path, records, config.scoring(), place, loaded)
        unanswered = held_out.unanswered(model.path)
        answers = held_out.answer_prompts(
            records,
            model.path,
            0 if unanswered else config.sample_prompts,
            config.sampling,
            config.dtype,
            out.progress,
            place.ranks,
            loaded,
        )
        drawn = []
        if baseline_model is not None and answers:
            del loaded  # one model at a time
            folders = model.path, baseline_model.path
            how = config.divergence()
            drawn = score_own_samples(records, *folders, how, out.progress, place.ranks)
    if not place.ranks.is_first:
        return {}
    reference = out.path if baseline is None else baseline.path
    metrics = preference_metrics(records, out.path, reference, loss)
    if baseline is not None and loss is not None:
        margins = reward_margins(records, out.path, reference, loss)
        write_json_lines(out.path / "calibration.jsonl", map(asdict, reliability(margins)))
    answers = held_out.judge(answers, config.checks)
    write_json_lines(out.path / "answers.jsonl", answers)
    metrics |= writing(answers)
    if drawn:
        metrics |= {f"sampled/{name}": value for name, value in divergence(drawn).items()}
    harmed = far_from(metrics.get("sampled/kl_per_token", {}).get("value"), "baseline")
    if baseline is not None and answers:
        before = held_out.judge(read_json_lines(baseline / "answers.jsonl"), config.checks)
        (out.path / "summary.md").write_text(held_out.side_by_side(before, answers), "utf-8")
        metrics |= held_out.compare_answers(before, answers)
        first, now = (writing(side)["sampled/ended"]["value"] for side in (before, answers))
        harmed += stopped_ending(first, now, len(answers), "baseline")
    metrics |= held_out.check_answers(answers)
    (out.path / "metrics.json").write_text(json.dumps(metrics, indent=1), "utf-8")
    told = [*scored.get("notices", ()), unanswered if config.sample_prompts else "", *harmed]
    notices = [notice for notice in told if notice]
    return metrics | ({"notices": notices} if notices else {})
