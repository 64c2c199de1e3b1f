"""``evaluate``: a model on held-out pairs, by its logps and by what it writes."""

import json
from dataclasses import dataclass, field

from pipeline import Metrics, Output, step
from steps.data.jsonl import read_json_lines, write_json_lines
from steps.data.parquet import read_rows
from steps.evaluation.checkers import compile_checks
from steps.generation.config import SamplingConfig
from steps.kinds import Evaluation, Model, PairTokens
from steps.training.checks import set_choice
from steps.training.config import Attention, Dtype, ReferenceConfig
from steps.training.losses.base import PreferenceLoss
from steps.training.losses.dpo import Dpo
from steps.workplace import at_work


@dataclass(frozen=True)
class EvaluateConfig:
    """What is looked at.

    Args:
        sample_prompts: how many held-out prompts the model answers.
        checks: named regular expressions; the share of answers that match each is reported.
    """

    dtype: Dtype = Dtype.float32
    tokens_per_forward: int = 1024
    attention: Attention = Attention.auto
    sample_prompts: int = 12
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    checks: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        set_choice(self, "dtype", Dtype)
        set_choice(self, "attention", Attention)
        if self.sample_prompts < 0:
            raise ValueError(f"sample_prompts must not be negative, got {self.sample_prompts}")
        self.scoring()  # refuses what it cannot use
        compile_checks(self.checks)

    def scoring(self) -> ReferenceConfig:
        """How logps are computed."""
        return ReferenceConfig(self.dtype, self.tokens_per_forward, self.attention)


@step(makes=Evaluation)
def evaluate(
    out: Output,
    tokens: PairTokens,
    model: Model,
    config: EvaluateConfig = EvaluateConfig(),
    baseline: Evaluation | None = None,
    loss: PreferenceLoss = Dpo(),
) -> Metrics:
    """Write logps, ``answers.jsonl`` and ``metrics.json``; beside a baseline also ``summary.md``
    and ``calibration.jsonl``, which says how often pairs are right by how sure their margins are.

    Args:
        tokens: held-out pairs.
        baseline: the evaluation of the reference model on the same pairs. A model without one is
            its own reference: a loss that compares with a reference gives it no reward, so that it
            gets no pair right.
        loss: what says how responses are rewarded, and what ``eval_loss`` is.
    """
    from steps.evaluation import answers as held_out
    from steps.evaluation.calibration import reliability
    from steps.evaluation.preferences import preference_metrics, reward_margins
    from steps.training.reference import run_reference

    records = read_rows(tokens.path)
    with at_work(out) as place:
        scored = run_reference(model.path, records, config.scoring(), place)
        answers = held_out.answer_prompts(
            records,
            model.path,
            config.sample_prompts,
            config.sampling,
            config.dtype,
            out.progress,
            place.ranks,
        )
    if not place.ranks.is_first:
        return {}
    reference = out.path if baseline is None else baseline.path
    metrics = preference_metrics(records, out.path, reference, loss)
    if baseline is not None:
        margins = reward_margins(records, out.path, reference, loss)
        bins = [one.to_json() for one in reliability(margins)]
        write_json_lines(out.path / "calibration.jsonl", bins)
    answers = held_out.judge(answers, config.checks)
    write_json_lines(out.path / "answers.jsonl", answers)
    if baseline is not None and answers:
        before = read_json_lines(baseline / "answers.jsonl")
        (out.path / "summary.md").write_text(held_out.side_by_side(before, answers), "utf-8")
        metrics |= held_out.compare_answers(before, answers, config.checks)
    metrics |= held_out.check_answers(answers, config.checks)
    (out.path / "metrics.json").write_text(json.dumps(metrics, indent=1), "utf-8")
    return metrics | {name: value for name, value in scored.items() if name == "notices"}
