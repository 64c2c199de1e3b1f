"""What a model writes, with the probabilities that it and another give to it, token for token."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from steps.data.rendering import load_tokenizer
from steps.generation.sampling import sample_ids
from steps.measure_kl import KlConfig
from steps.training.backends.build import build_backend
from steps.training.examples import TokenGroup, TokenResponse
from steps.training.metrics import OnProgress
from steps.training.models import load_model
from steps.training.parity import choose_attention
from steps.training.ranks import ALONE, Ranks


def score_own_samples(
    records: Sequence[Mapping[str, Any]],
    model: Path,
    reference: Path,
    config: KlConfig,
    on_progress: OnProgress,
    ranks: Ranks = ALONE,
) -> list[dict[str, Any]]:
    """Responses that ``model`` draws to the first different prompts of ``records``, pair tokens:
    ``row``, ``tokens`` (how many, the end of turn included), ``logp`` and ``reference_logp``.

    Ranks share the work, and each gets all of it.
    """
    policy = load_model(model, config.dtype)
    prompts = {tuple(record["prompt_ids"]): record["row"] for record in reversed(records)}
    asked = list(reversed(prompts.items()))[: config.prompts]
    drawn = sample_ids(
        policy,
        load_tokenizer(model),
        [ids for ids, _ in asked],
        config.sampling,
        on_progress,
        ranks,
    )
    groups = [
        TokenGroup(row, f"{row}#{number}", ids, (TokenResponse(tuple(response)),))
        for (ids, row), responses in zip(asked, drawn, strict=True)
        for number, response in enumerate(responses)
        if response
    ]
    own = _logps(policy, groups, config, ranks)
    del policy  # one model at a time
    other = load_model(reference, config.dtype, on_host=ranks.count > 1)
    others = _logps(other, groups, config, ranks)
    return [
        {"row": g.row, "tokens": g.responses[0].num_scored, "logp": one, "reference_logp": other}
        for g, one, other in zip(groups, own.tolist(), others.tolist(), strict=True)
    ]


def _logps(model: Any, groups: Sequence[TokenGroup], config: KlConfig, ranks: Ranks) -> Tensor:
    backend = build_backend(model, config.tokens_per_forward, ranks)
    choose_attention(backend, groups, config.attention, ranks)
    logps = backend.logps(backend.prepare(groups)).result().sequences
    backend.close()
    return logps
