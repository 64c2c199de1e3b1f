"""The scores of completions, which are text: in one go, or call after call by a model that stays
loaded."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steps.data.tokens.config import TokenizeConfig
from steps.data.tokens.rendering import load_tokenizer
from steps.data.tokens.tokenizing import Tokenization, tokenization
from steps.models.folders import vocabulary_size
from steps.models.positions import beyond_training
from steps.models.workplace import Workplace
from steps.reward_models.classifier import load_reward_model
from steps.reward_models.completion_tokens import Answered, groups_of, tokenize_answers
from steps.reward_models.config import RewardScoring
from steps.reward_models.head_scores import VALUES
from steps.reward_models.reward_scores import (
    Record,
    Scored,
    mean_score,
    require_finite,
    score_groups,
    scores_by,
)
from steps.scoring.examples import TokenGroup, longest
from steps.scoring.parity import choose_attention
from steps.scoring.scorer import Scorer

_Answers = Sequence[Sequence[Answered | str]]
"""For each record, its completions as tokens, or why they cannot be scored."""


def score_answers(
    records: Sequence[Record],
    model: Path,
    config: RewardScoring,
    tokenize: TokenizeConfig,
    place: Workplace,
) -> Scored:
    """The records of a ``completions.jsonl`` with ``scores``, one for each completion. The score is
    None if the chat template or a limit refuses the completion.

    Raises:
        ValueError: there is no completion that can be scored, the folder has no chat template, or
            its tokenizer does not fit the model.
    """
    answers = tokenize_answers(records, _ready(model, tokenize))

    def read(vocabulary: int) -> list[TokenGroup]:
        groups = _groups(records, answers, vocabulary)
        if not groups:
            raise ValueError("there is no completion that can be scored; look at tokenize's limits")
        return groups

    groups, scores, notices = score_groups(model, read, config, place)
    if not place.ranks.is_first:
        return [], {}
    of_records = _by_record(answers, groups, scores)
    scored = [{**r, "scores": own} for r, own in zip(records, of_records, strict=True)]
    refused = _refused(records, answers)
    notices = [*notices.get("notices", ()), *refused[:1]]
    return scored, {
        "prompts": len(scored),
        "completions": sum(map(len, answers)),
        "completions_without_score": len(refused),
        **mean_score([[score for score in own if score is not None] for own in of_records]),
        **({"notices": notices} if notices else {}),
    }


class AnswerScorer:
    """A reward model that stays loaded, in one process; a context manager."""

    def __init__(self, model: Path, config: RewardScoring, tokenize: TokenizeConfig) -> None:
        self._config = config
        self._ready = _ready(model, tokenize)
        loaded = load_reward_model(model, config.dtype, quantization=config.quantization)
        self._vocabulary = vocabulary_size(loaded)
        self._scorer = Scorer(loaded, config.tokens_per_forward, VALUES)
        self._notices: dict[str, str] = {}  # the first of each kind

    @property
    def notices(self) -> list[str]:
        """What users should know of the scores so far."""
        return list(self._notices.values())

    def scores(self, records: Sequence[Record]) -> list[list[float | None]]:
        """For each record of a ``completions.jsonl``, the scores of its completions; None for one
        that the chat template or a limit refuses.

        How the model reads is decided anew in each call, from this call's completions. So a call
        gives the same bits whatever was scored before.

        Raises:
            FloatingPointError: a score of a row, which the message names, is not finite.
        """
        answers = tokenize_answers(records, self._ready)
        groups = _groups(records, answers, self._vocabulary)
        scores: list[list[float]] = []
        self._notice("refused", next(iter(_refused(records, answers)), None))
        if groups:
            packing = choose_attention(self._scorer, groups, self._config.attention)
            scores = scores_by(self._scorer, groups)
            require_finite(groups, scores)
            self._notice("packing", packing.notice)
            self._notice("length", beyond_training(self._scorer.model, *longest(groups)))
        return _by_record(answers, groups, scores)

    def _notice(self, kind: str, notice: str | None) -> None:
        if notice:
            self._notices.setdefault(kind, notice)

    def __enter__(self) -> "AnswerScorer":
        return self

    def __exit__(self, *error: object) -> None:
        self._scorer.close()


def _ready(model: Path, tokenize: TokenizeConfig) -> Tokenization:
    return tokenization(load_tokenizer(model), tokenize)


def _groups(records: Sequence[Record], answers: _Answers, vocabulary: int) -> list[TokenGroup]:
    """The distinct answers of each record, as examples.

    Raises:
        ValueError: an id is not in the model's vocabulary.
    """
    groups = [
        group
        for record, answered in zip(records, answers, strict=True)
        for group in groups_of(answered, str(record["row"]))
    ]
    for group in groups:
        ids = (*group.prompt_ids, *(i for response in group.responses for i in response.ids))
        if not 0 <= min(ids) <= max(ids) < vocabulary:
            raise ValueError(
                f"row {group.row!r} has ids from {min(ids)} to {max(ids)}, but the reward model's "
                f"vocabulary is 0 to {vocabulary - 1}; its tokenizer belongs to another model"
            )
    return groups


def _by_record(
    answers: _Answers, groups: Sequence[TokenGroup], scores: Sequence[Sequence[float]]
) -> list[list[float | None]]:
    """The scores of groups, for each record and completion."""
    found = {
        Answered(group.prompt_ids, response.ids): score
        for group, of_group in zip(groups, scores, strict=True)
        for response, score in zip(group.responses, of_group, strict=True)
    }
    return [[None if isinstance(a, str) else found[a] for a in each] for each in answers]


def _refused(records: Sequence[Mapping[str, Any]], answers: _Answers) -> list[str]:
    """A notice for each completion without a score."""
    return [
        f"a completion of row {record['row']!r} has no score: {answer}"
        for record, answered in zip(records, answers, strict=True)
        for answer in answered
        if isinstance(answer, str)
    ]
