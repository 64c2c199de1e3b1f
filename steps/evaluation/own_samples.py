"""Responses sampled from a model, with their logps under the model and under a reference."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from steps.data.tokens.rendering import load_tokenizer
from steps.data.vocabularies import require_meaning
from steps.evaluation.config import KlConfig
from steps.generation.sampling import sample
from steps.models.folders import load_model, vocabulary_size
from steps.models.ranks import ALONE, Ranks
from steps.models.workplace import OnProgress
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.parity import choose_attention
from steps.scoring.scorer import build_scorer


def score_own_samples(
    records: Sequence[Mapping[str, Any]],
    model: Path,
    reference: Path,
    config: KlConfig,
    on_progress: OnProgress,
    ranks: Ranks = ALONE,
) -> list[dict[str, Any]]:
    """Sample responses of ``model`` to the first distinct prompts of ``records`` (pair tokens).

    Each returned record has ``row``, ``tokens`` (their number, including the end of turn), ``logp``
    and ``reference_logp``. Ranks share the work, and each gets all records.

    Raises:
        ValueError: a token is not in the vocabulary of one of the two models, or means something
            else to the reference.
    """
    policy = load_model(model, config.dtype)
    prompts = {tuple(record["prompt_ids"]): record["row"] for record in reversed(records)}
    asked = list(reversed(prompts.items()))[: config.prompts]
    tokenizer = load_tokenizer(model)
    given = [(row, ids) for ids, row in asked]
    for row, ids in given:
        _require_known(row, ids, policy, "the model")
    drawn = sample(policy, tokenizer, given, config.sampling, on_progress, ranks)
    groups = [
        TokenGroup(row, f"{row}#{one.k}", ids, (TokenResponse(one.ids),))
        for (ids, row), completions in zip(asked, drawn, strict=True)
        for one in completions
    ]
    own = _logps(policy, groups, config, ranks)
    del policy  # one model at a time
    sampled = partial(chain.from_iterable, (group.responses[0].ids for group in groups))
    require_meaning(model, reference, sampled, "compare models with one tokenizer")
    other = load_model(reference, config.dtype, on_host=ranks.count > 1)
    for group in groups:
        _require_known(group.row, group.responses[0].ids, other, "the reference")
    others = _logps(other, groups, config, ranks)
    return [
        {"row": g.row, "tokens": g.responses[0].num_scored, "logp": one, "reference_logp": other}
        for g, one, other in zip(groups, own.tolist(), others.tolist(), strict=True)
    ]


def _require_known(row: str, ids: Sequence[int], model: PreTrainedModel, named: str) -> None:
    if (size := vocabulary_size(model)) <= (most := max(ids, default=0)):
        raise ValueError(
            f"row {row!r} has the token {most}, and the vocabulary of {named} is 0 to {size - 1}; "
            "compare models with one tokenizer, which also made the tokens"
        )


def _logps(model: Any, groups: Sequence[TokenGroup], config: KlConfig, ranks: Ranks) -> Tensor:
    scorer = build_scorer(model, config.tokens_per_forward, ranks)
    choose_attention(scorer, groups, config.attention, ranks)
    logps = scorer.logps(scorer.prepare(groups)).result().sequences
    scorer.close()
    return logps
