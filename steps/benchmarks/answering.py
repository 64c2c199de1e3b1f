"""Answer a benchmark's questions with a model: write texts, or score texts that are given.

Texts that are given go through the scorer. Those that follow one prompt share it, so the choices of
a question take one reading of their prompt. What the model writes comes from the sampler.

Tokens are those of lm-eval's own models: a space at the end of a prompt belongs to the text after
it; prompt and text are tokenised together, and what reaches beyond the tokens of the prompt alone
is scored. Without a prompt, a text is read in windows of the model's length, each token once; the
first one follows the token of the beginning. What is too long loses its beginning.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from steps.benchmarks.config import AnsweringConfig
from steps.benchmarks.questions import Question
from steps.data.tokens.rendering import load_bare_tokenizer
from steps.generation.engine import Finish, Request
from steps.generation.engine_config import EngineConfig
from steps.generation.sampling import as_list, end_tokens
from steps.models.folders import load_model, vocabulary_size
from steps.models.workplace import Workplace
from steps.online.recording import record, require_ids
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.logps import differentiable_logps, token_logps
from steps.scoring.reference import (
    MODEL,
    OpenModel,
    ScoredFiles,
    lists,
    open_model,
    write_scores,
)
from steps.scoring.scored_by import model_digest
from steps.scoring.scorer import Readout

Answer = dict[str, Any]
_FIRST_ROUND = 64
"""Tokens that are written before stop texts are looked for; twice as many in each later round."""
_READOUT = Readout(partial(token_logps, hits=True), differentiable_logps, token_logps)
_AT_LENGTH = 2048
"""The most tokens of a sequence, where neither the model nor its tokenizer says a length."""
_FORM = pa.schema(
    [
        pa.field("group_id", pa.string(), nullable=False),
        pa.field("logps", pa.list_(pa.float64()), nullable=False),
        pa.field("greedy", pa.list_(pa.int8()), nullable=False),
    ]
)


def answer_questions(
    questions: Sequence[Question],
    folder: Path,
    config: AnsweringConfig,
    place: Workplace,
    engine: EngineConfig,
) -> tuple[list[Answer], dict[str, Any]]:
    """The answers of the model in a folder, in the order of the questions, and metrics.

    Finished work stays in scratch; an interrupted run goes on with the rest. Ranks share the work,
    and the first gets the answers.

    Raises:
        ValueError: a question is empty, or too long for the model.
        Left: the run was told to leave; what is finished is kept.
    """
    to_score = [question for question in questions if "given" in question]
    to_write = [question for question in questions if "write" in question]
    model = load_model(folder, config.dtype) if to_write or place.ranks.count == 1 else None
    tokens = _Tokens.of(folder)
    found: dict[str, Answer] = {}
    notices: list[str] = []
    weights = model_digest(folder)
    if to_score:
        loaded = model if place.ranks.count == 1 else None
        opened = open_model(folder, config.scoring(), place.ranks, loaded, lambda _: _READOUT)
        found, notices = _score(to_score, tokens, opened, weights, config, place)
    if to_write:
        assert model is not None
        found |= _write(to_write, tokens, model, weights, config, place, engine)
    if tokens.cut:
        ids = ", ".join(list(tokens.cut)[:3])
        notices.append(
            f"{len(tokens.cut)} questions are longer than the model's {tokens.length} tokens, and "
            f"lost their beginnings (first of them: {ids}); lm-eval cuts them in the same way"
        )
    answered = [found[question["id"]] for question in questions] if place.ranks.is_first else []
    texts = [answer for answer in answered if "text" in answer]
    metrics = {
        "questions": len(questions),
        "written": len(texts),
        "cut": sum(answer["finish"] != "stop" for answer in texts),
        "tokens": sum(answer["tokens"] for answer in answered),
    }
    return answered, metrics | ({"notices": notices} if notices else {})


@dataclass
class _Tokens:
    """The tokens of prompts and of what follows them.

    length: the most tokens of a sequence.
    cut: the ids of questions that lost their beginning.
    """

    tokenizer: PreTrainedTokenizerBase
    length: int
    cut: dict[str, None] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> "_Tokens":
        """Those of the model in a folder."""
        tokenizer, config = load_bare_tokenizer(folder), AutoConfig.from_pretrained(folder)
        lengths = getattr(config.get_text_config(), "max_position_embeddings", None)
        said = tokenizer.model_max_length
        return cls(tokenizer, lengths or (said if said < 2**31 else _AT_LENGTH))

    def prompt(self, question: Question, room: int) -> list[int]:
        """The last tokens of a prompt, so that `room` tokens fit behind them."""
        ids = self._encode(self.text(question["prompt"]))
        if (most := self.length - room) < 1:
            raise ValueError(
                f"question {question['id']} asks for {room} tokens, and the model reads at most "
                f"{self.length}; take a model for longer sequences"
            )
        return self._last(ids, most, question)

    def pairs(self, question: Question) -> Iterator[tuple[list[int], list[int]]]:
        """Of a text that is given, the tokens, in parts with the tokens before each."""
        text, first = question["given"], self._first()
        if question["prompt"] is None:
            ids = self._encode(text)
            for start in range(0, len(ids), self.length):
                end = min(start + self.length, len(ids))
                before = ids[max(end - self.length - 1, 0) : start] if start else first
                yield before, ids[start:end]
            return
        prompt = self.text(question["prompt"])
        if not prompt:
            ids = self._encode(text, special=False)
            before, ids = (first, ids) if ids[:1] != first else (ids[:1], ids[1:])
        else:
            before = self._encode(prompt.rstrip() or prompt)
            ids = self._encode(prompt + text)[len(before) :]
        if not 0 < len(ids) <= self.length:
            raise ValueError(
                f"question {question['id']} gives a text of {len(ids)} tokens after its prompt; "
                f"it must have 1 to {self.length}"
            )
        yield self._last(before + ids, self.length + 1, question)[: -len(ids)], ids

    def text(self, prompt: Any) -> str:
        """A prompt as text; a chat by the template of the tokenizer."""
        if isinstance(prompt, str):
            return prompt
        rendered = self.tokenizer.apply_chat_template(
            prompt["messages"],
            tokenize=False,
            add_generation_prompt=prompt["open"],
            continue_final_message=not prompt["open"],
        )
        return str(rendered)

    def stops(self, model: PreTrainedModel, question: Question) -> list[int]:
        """Tokens that end an answer: for chats, also the one that ends a turn."""
        if not isinstance(question["prompt"], str):
            return end_tokens(model, self.tokenizer)
        named = model.generation_config.eos_token_id if model.generation_config else None
        return sorted({*as_list(named), *as_list(self.tokenizer.eos_token_id)})

    def _first(self) -> list[int]:
        """The token before a text without a prompt."""
        first = as_list(self.tokenizer.bos_token_id) or as_list(self.tokenizer.eos_token_id)
        if not first:
            raise ValueError("the tokenizer has no token of the beginning, and none of the end")
        return first

    def _encode(self, text: str, special: bool | None = None) -> list[int]:
        if special is None:
            special = not text.startswith(str(self.tokenizer.decode(self._first())))
        return list(self.tokenizer.encode(text, add_special_tokens=special))

    def _last(self, ids: list[int], most: int, question: Question) -> list[int]:
        if len(ids) > most:
            self.cut[question["id"]] = None
        return ids[-most:]


def _score(
    questions: Sequence[Question],
    tokens: _Tokens,
    opened: OpenModel,
    weights: str,
    config: AnsweringConfig,
    place: Workplace,
) -> tuple[dict[str, Answer], list[str]]:
    """The likelihoods of texts, by question; and notices."""
    asked: dict[tuple[int, ...], dict[tuple[int, ...], list[str]]] = {}
    for question in questions:
        for before, ids in tokens.pairs(question):
            texts = asked.setdefault(tuple(before), {})
            texts.setdefault(tuple(ids), []).append(question["id"])
    groups = [_group(prompt, tuple(texts), texts) for prompt, texts in asked.items()]
    for (prompt, texts), group in zip(asked.items(), groups, strict=True):
        require_ids(((group.row, (*prompt, *ids)) for ids in texts), opened.vocabulary)
    scored_by, notices = opened.make_ready(groups)
    told = {MODEL: weights, **scored_by.metadata()}
    form = ScoredFiles("given", _FORM.with_metadata(told), _columns)
    inside = replace(place, output=place.scratch / "given")
    per_shard = config.scoring().groups_per_shard
    found: dict[str, Answer] = defaultdict(lambda: {"logp": 0.0, "greedy": True, "tokens": 0})
    scores = (
        score
        for table in write_scores(opened, groups, per_shard, form, inside)
        for score in zip(*(table[name].to_pylist() for name in ("logps", "greedy")), strict=True)
    )
    for texts, of_group in zip(asked.values(), scores, strict=place.ranks.is_first):
        for (ids, names), logp, hit in zip(texts.items(), *of_group, strict=True):
            for name in names:
                answer = found[name]
                answer["logp"] += logp
                answer["greedy"] = answer["greedy"] and bool(hit)
                answer["tokens"] += len(ids)
    return {name: {"id": name, **answer} for name, answer in found.items()}, notices


def _group(
    prompt: tuple[int, ...], texts: Sequence[tuple[int, ...]], names: Mapping[Any, Sequence[str]]
) -> TokenGroup:
    digest = sha256(repr((prompt, texts)).encode()).hexdigest()[:20]
    responses = tuple(TokenResponse(ids) for ids in texts)
    return TokenGroup(next(iter(names.values()))[0], digest, prompt, responses)


def _columns(groups: Sequence[TokenGroup], scores: Sequence[torch.Tensor]) -> list[pa.Array]:
    """Of each text the sum of its logps, and whether each of its tokens is the likeliest."""
    sums = np.array([float(score[:, 0].double().sum()) for score in scores])
    greedy = np.array([bool((score[:, 1] == 1).all()) for score in scores], np.int8)
    texts = [len(group.responses) for group in groups]
    return [lists(sums, texts), lists(greedy, texts)]


def _write(
    questions: Sequence[Question],
    tokens: _Tokens,
    model: PreTrainedModel,
    weights: str,
    config: AnsweringConfig,
    place: Workplace,
    engine: EngineConfig,
) -> dict[str, Answer]:
    """What the model writes, by question.

    Stop texts are looked for after rounds: what has none yet is asked for more.
    """
    most = {q["id"]: q["write"]["max_new_tokens"] or config.max_new_tokens for q in questions}
    prompts = {q["id"]: tokens.prompt(q, most[q["id"]]) for q in questions}
    require_ids(prompts.items(), vocabulary_size(model))
    ends = {q["id"]: tuple(tokens.stops(model, q)) for q in questions}
    ids: dict[str, list[int]] = {name: [] for name in prompts}
    found: dict[str, Answer] = {}
    pending, at_once, drawing = list(questions), _FIRST_ROUND, None
    while pending:
        requests = []
        for question in pending:
            name, write = question["id"], question["write"]
            left = most[name] - len(ids[name])
            requests.append(
                Request(
                    name,
                    0,
                    (*prompts[name], *ids[name]),
                    min(left, at_once) if write["stop"] else left,
                    write["temperature"],
                    ends[name],
                    (config.seed, len(ids[name])),
                    write["top_p"],
                    write["top_k"],
                )
            )
        if drawing is None:
            sizes = config.slots, config.tokens_per_forward
            drawing = engine.connect(model, requests, weights, *sizes).engine
        unfinished = []
        for question, drawn in zip(pending, record(drawing, requests, place), strict=True):
            name, stop = question["id"], question["write"]["stop"]
            ids[name] += drawn.ids
            text = whole = str(tokens.tokenizer.decode(ids[name], skip_special_tokens=True))
            for end in filter(None, stop):
                text = text.split(end)[0]
            ended = text != whole or drawn.finish is Finish.stop
            if not ended and len(ids[name]) < most[name]:
                unfinished.append(question)
                continue
            finish = "stop" if ended else "length"
            found[name] = {"id": name, "text": text, "finish": finish, "tokens": len(ids[name])}
        pending, at_once = unfinished, 2 * at_once
    return found
