"""Settings of evaluations: frozen dataclasses, importable without torch."""

from dataclasses import dataclass, field

from steps.evaluation.answer_checks import compile_checks
from steps.generation.config import WHOLE, SamplingConfig
from steps.models.config import Dtype
from steps.scoring.config import Attention, ReferenceConfig, ScoringBackend
from steps.shared.checks import require, require_count, set_choice
from steps.shared.execution_detail import added_field


@dataclass(frozen=True)
class EvaluateConfig:
    """How a model is evaluated on held-out pairs.

    Args:
        sample_prompts: how many held-out prompts the model answers.
        sampling: how answers are sampled, one to each prompt.
        checks: named regular expressions; the share of answers that match each is reported.
        backend: the backend that computes logps, as in `ReferenceConfig`; torch always samples the
            answers.
        dtype: the dtype of weights and activations.
        tokens_per_forward: the most tokens of one forward. Examples are packed up to this number; a
            longer example gets its own forward. A larger number takes more memory.
        attention: how a forward lays out examples: packed without padding, padded, or packed only
            if the model supports it.
    """

    dtype: Dtype = Dtype.float32
    tokens_per_forward: int = 1024
    attention: Attention = Attention.auto
    sample_prompts: int = 12
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    checks: dict[str, str] = field(default_factory=dict)
    backend: ScoringBackend | None = added_field(None, before=None)

    def __post_init__(self) -> None:
        set_choice(self, "dtype", Dtype)
        set_choice(self, "attention", Attention)
        require_count(self, "sample_prompts", least=0)
        count = self.sampling.num_completions
        rule = "sampling.num_completions must be 1: of several only the first would be looked at"
        require(count == 1, f"{rule}; sample_rollouts and judge count all of them", count)
        _require_all_prompts(self.sampling)
        self.scoring()  # raises an error for invalid settings
        compile_checks(self.checks)

    def scoring(self) -> ReferenceConfig:
        """How logps are computed."""
        return ReferenceConfig(
            self.dtype, self.tokens_per_forward, self.attention, backend=self.backend
        )

    def divergence(self) -> "KlConfig":
        """How the divergence from the baseline is measured: one sample to each answered prompt."""
        answers = self.sampling
        drawn = SamplingConfig(
            answers.max_new_tokens, 1.0, 1, answers.seed, answers.slots, answers.tokens_per_forward
        )
        settings = self.dtype, self.tokens_per_forward, self.attention
        return KlConfig(self.sample_prompts, drawn, *settings)


@dataclass(frozen=True)
class KlConfig:
    """How the divergence from a reference is measured. Samples must come from the model's own
    distribution, so the temperature must be 1, without top_p, top_k and min_p.

    Args:
        prompts: how many held-out prompts the model answers.
        sampling: how answers are sampled: ``num_completions`` for each prompt, cut at
            ``max_new_tokens``.
        dtype: the dtype of weights and activations.
        tokens_per_forward: the most tokens of one forward. Examples are packed up to this number; a
            longer example gets its own forward. A larger number takes more memory.
        attention: how a forward lays out examples: packed without padding, padded, or packed only
            if the model supports it.
    """

    prompts: int = 32
    sampling: SamplingConfig = field(
        default_factory=lambda: SamplingConfig(64, temperature=1.0, num_completions=4)
    )
    dtype: Dtype = Dtype.float32
    tokens_per_forward: int = 1024
    attention: Attention = Attention.auto

    def __post_init__(self) -> None:
        set_choice(self, "dtype", Dtype)
        set_choice(self, "attention", Attention)
        require_count(self, "prompts", "tokens_per_forward")
        for name, value in WHOLE.items():
            given = getattr(self.sampling, name)
            rule = f"sampling.{name} must be {value:g}, to draw from the model's own distribution"
            require(given == value, rule, given)
        _require_all_prompts(self.sampling)


def _require_all_prompts(sampling: SamplingConfig) -> None:
    most, rule = sampling.max_prompt_length, "sampling.max_prompt_length must be null"
    require(most is None, f"{rule}: evaluations answer held-out prompts of any length", most)
