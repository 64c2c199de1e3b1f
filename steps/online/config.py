"""Settings of online training: a frozen dataclass, importable without torch."""

import math
from dataclasses import dataclass, field

from steps.online.methods.method import Method
from steps.online.methods.policy_gradient import PolicyGradient
from steps.shared.checks import require, require_count
from steps.shared.execution_detail import added_field, detail_field
from steps.training.config import OptimizerConfig, Schedule, UpdateConfig


@dataclass(frozen=True, kw_only=True)
class RlConfig(UpdateConfig):
    """Online training: in each iteration, the policy samples completions and learns from them.

    Args:
        method: how the policy learns from its completions.
        prompts: how many prompts an iteration takes.
        completions: how many completions each prompt gets.
        max_new_tokens: the most tokens of a completion; a longer one is cut.
        temperature: the sampling temperature.
        inner_epochs: how many passes over its completions an iteration makes.
        minibatches: how many optimiser steps one pass takes; each takes a part of the prompts.
        horizon: the number of iterations over which a schedule other than constant falls. It is
            independent of a segment's length, so that two segments equal one run. Warm-up counts
            iterations too.
        max_mismatch: end the run with an error if sampling and trained policy differ by more than
            this (mean k3 per token, in nats); null: never.
        lag: how many iterations sampling is behind training, so that both work at once; iteration
            i is drawn by the weights of the start of iteration i - lag. Segments of a run have one
            lag.
        overlong_buffer: over the last tokens of ``max_new_tokens``, so many, a completion's reward
            falls by up to 1 (soft overlong punishment: Yu et al. 2025, equation 13); null: it does
            not.
        max_prompt_length: the most tokens of a prompt; a longer one is left out, and told; null: no
            limit.
        log_kl: log ``kl/k1`` and ``kl/k3``, how far the policy that begins an iteration is from the
            reference (by default the policy that the run starts from), over all completions. A
            method without a reference then holds one, and it scores each completion once.
        slots: the most completions that are generated in parallel.
    """

    method: Method = field(default_factory=PolicyGradient)
    prompts: int = 64
    completions: int = 8
    max_new_tokens: int = 256
    temperature: float = 1.0
    inner_epochs: int = 1
    minibatches: int = 1
    horizon: int | None = None
    max_mismatch: float | None = None
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=1e-6, schedule=Schedule.constant)
    )
    lag: int = added_field(0, before=0)
    overlong_buffer: int | None = added_field(None, before=None)
    max_prompt_length: int | None = added_field(None, before=None)
    log_kl: bool = added_field(False, before=False)
    slots: int = detail_field(64)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count(self, "prompts", "max_new_tokens", "inner_epochs", "minibatches", "slots")
        require_count(self, "completions", least=self.method.least_completions)
        require_count(self, "horizon", "overlong_buffer", "max_prompt_length", or_null=True)
        buffer, most = self.overlong_buffer, self.max_new_tokens
        rule = f"overlong_buffer must be at most max_new_tokens, {most}, of which it is a part"
        require(buffer is None or buffer <= most, rule, buffer)
        require_count(self, "lag", least=0)
        rule = f"minibatches must be at most prompts, {self.prompts}, of which each takes a part"
        require(self.minibatches <= self.prompts, rule, self.minibatches)
        if self.lag and self.lora is not None:
            raise ValueError(
                f"lag is {self.lag}, but adapters are merged for the sampler in step with the "
                "trainer; leave out lag or lora"
            )
        if self.lag and self.method.of_data:
            raise ValueError(f"lag is {self.lag}: leave it out, or set method.on_policy=1")
        rounding = self.quantization
        require(rounding is None, "online training needs lora.quantization=null", f"{rounding}")
        heat, bound = self.temperature, self.max_mismatch
        require(0 < heat < math.inf, "temperature must be above 0", heat)
        if self.method.weighs_by_policy and heat != 1:
            raise ValueError(
                f"temperature is {heat}, but {self.method.name} weighs tokens by the policy at "
                "temperature 1: they would be two distributions; draw at temperature 1"
            )
        if self.lora is not None and self.lora.dropout and self.method.weighs_by_policy:
            raise ValueError(
                f"lora.dropout is {self.lora.dropout:g}, but {self.method.name} compares the "
                "policy with itself, and dropout makes it another one in every update; set it to 0"
            )
        if bound is not None:
            require(0 < bound < math.inf, "max_mismatch must be above 0 or null", bound)
            if not self.method.weighs_by_policy:
                raise ValueError(
                    f"max_mismatch is {bound:g}, but {self.method.name} computes no "
                    "log-probabilities to compare with the sampler's; leave it out"
                )
        if self.optimizer.schedule is not Schedule.constant:
            falls = f"the schedule {self.optimizer.schedule} falls over horizon iterations, and "
            require(self.horizon is not None, f"{falls}horizon must be a number", self.horizon)
        if self.optimizer.warmup_fraction and self.horizon is None:
            raise ValueError(
                "optimizer.warmup_fraction is a share of horizon iterations, and horizon is null; "
                "set it, or warmup_steps instead"
            )
