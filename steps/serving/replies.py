"""Generate a model's answer piece by piece, from the same prompts as in evaluation.

The code that renders prompts for ``sample_completions`` and ``evaluate`` also renders these, and at
temperature 0 the answers are the same; the code that draws tokens is the same, too. A model without
a chat template continues plain text. Decoding settings that a model ships with are ignored.
"""

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedTokenizerBase,
)
from transformers.generation.streamers import BaseStreamer

from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message
from steps.data.tokens.rendering import Chat, load_bare_tokenizer, load_tokenizer
from steps.data.tokens.tokenizing import tokenization, tokenize_prompts
from steps.generation.alone import TokenDraws
from steps.generation.config import require_truncation
from steps.generation.engine import Request
from steps.generation.sampling import decoded, end_tokens
from steps.models.config import Dtype
from steps.models.folders import evaluating, language_model_of, load_as
from steps.models.positions import forget_lengths
from steps.shared.checks import require, require_count
from steps.shared.products import is_by_onednn

OnPiece = Callable[[str], None]
"""Called after each token with the text that is new; it is empty after a part of a character."""

_BYTE = re.compile("<0x[0-9A-F]{2}>")
"""A token that stands for a byte. If bytes in a row are no UTF-8, each becomes U+FFFD."""


class Enough(Exception):
    """Raised by an `OnPiece` to end an answer."""


class TooLong(ValueError):
    """A prompt leaves no room for an answer."""


@dataclass(frozen=True)
class Written:
    """What a model has written.

    Attributes:
        ids: its tokens, with the one that ends the answer.
        ended: whether the model ended the answer itself.
    """

    text: str
    ids: list[int]
    ended: bool


@dataclass(frozen=True)
class Drawing:
    """How an answer is sampled, as in `SamplingConfig`; a temperature of 0 takes the likeliest
    token."""

    max_new_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        require_count(self, "max_new_tokens")
        in_range = 0 <= self.temperature < math.inf
        require(in_range, "temperature must be 0 or above", self.temperature)
        require_truncation(self)

    def request(self, ids: Sequence[int], ends: Sequence[int]) -> Request:
        """A request for an answer to these tokens, which `ends` end."""
        return Request(
            "",
            0,
            tuple(ids),
            self.max_new_tokens,
            self.temperature,
            tuple(ends),
            (self.seed,),
            self.top_p,
            self.top_k,
            self.min_p,
        )


class Speaker:
    """A model and its tokenizer.

    Raises FileNotFoundError or ValueError for a folder without a language model or tokenizer.
    """

    def __init__(self, folder: Path, dtype: Dtype | None = None) -> None:
        if dtype is None:
            dtype = Dtype.bfloat16 if torch.cuda.is_available() else Dtype.float32
        if language_model_of(AutoConfig.from_pretrained(folder)) is not AutoModelForCausalLM:
            raise ValueError(f"{folder} holds a model that reads images; only text is answered")
        self.tokenizer = load_bare_tokenizer(folder)
        self.has_template = bool(self.tokenizer.chat_template)
        if self.has_template:
            self.tokenizer = load_tokenizer(folder)
            self._tokenization = tokenization(self.tokenizer)
        try:
            self.model, missing = load_as(AutoModelForCausalLM, folder, dtype)
        except ValueError as error:  # of transformers, about a setting, say, of generation
            raise ValueError(f"cannot load the model of {folder}: {error}") from error
        if missing:
            raise ValueError(f"{folder} lacks {min(missing)}: it is no language model")
        self._ends = end_tokens(self.model, self.tokenizer)
        _multiply_single_rows_by_pytorch(self.model)

    def answer(self, messages: Sequence[Message], drawing: Drawing, on_piece: OnPiece) -> str:
        """The model's next message in a conversation; raises what `prompt_of` and `write` raise."""
        return self.write(self.prompt_of(messages), drawing, on_piece).text

    def go_on(self, text: str, drawing: Drawing, on_piece: OnPiece) -> str:
        """The model's continuation of a text; raises what `write` raises."""
        ids = self.tokens_of(text)
        return self.write(ids, drawing, on_piece, continues=True).text

    def prompt_of(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation, up to where the model writes its next message.

        Raises ValueError if the chat template refuses the conversation.
        """
        (ids,) = tokenize_prompts(self._tokenization, [Chat(tuple(messages))])
        if isinstance(ids, MalformedRow):
            raise ValueError(f"the chat template refuses this conversation: {ids}")
        return ids

    def tokens_of(self, prompt: str | list[int]) -> list[int]:
        """The tokens of a text, or these tokens if the model has them; else raises ValueError."""
        if isinstance(prompt, str):
            return list(self.tokenizer(prompt)["input_ids"])
        known = self.model.get_input_embeddings().weight.size(0)  # type: ignore[union-attr]
        if foreign := [token for token in prompt if not 0 <= token < known]:
            raise ValueError(f"the model has tokens from 0 to {known - 1}, and none {foreign[0]}")
        return prompt

    def write(
        self, ids: Sequence[int], drawing: Drawing, on_piece: OnPiece, continues: bool = False
    ) -> Written:
        """What the model writes after these tokens.

        If it continues their text, it keeps the space before its first word; tokenizers like
        Llama 2's remove that space at the beginning of a text.

        Raises ValueError if there are no tokens, or more than the model has positions for.
        """
        ends = self._ends
        self.model.generation_config = GenerationConfig(
            max_new_tokens=min(drawing.max_new_tokens, self.room_after(ids)),
            do_sample=False,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,  # never used, as there is only one row
        )
        draws = LogitsProcessorList()
        if drawing.temperature > 0:
            draws.append(TokenDraws(drawing.request(ids, ends), 0, _require_logp))
        forget_lengths(self.model)
        prompt = torch.tensor([ids], device=self.model.device)
        pieces = _Pieces(self.tokenizer, ids if continues else [], on_piece)
        with suppress(Enough), torch.no_grad(), evaluating(self.model):
            self.model.generate(  # pyright: ignore[reportCallIssue]
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                logits_processor=draws,
                streamer=pieces,
            )
        ended = bool(pieces.ids) and pieces.ids[-1] in ends
        return Written(pieces.text, pieces.ids, ended)

    def room_after(self, ids: Sequence[int], least: int = 1) -> int:
        """How many tokens the model can write after these; at least as many are needed."""
        if not ids:
            raise ValueError("there is nothing to answer; write a prompt")
        most = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if not most:
            return 2**31
        if len(ids) + least > most:
            raise TooLong(f"the prompt has {len(ids)} tokens, and the model takes {most}")
        return most - len(ids)


def _require_logp(token: int, logp: float) -> None:
    if math.isnan(logp):
        raise ValueError("the model's logits are not numbers; look at its training")


def _multiply_single_rows_by_pytorch(model: nn.Module) -> None:
    """Let PyTorch compute the products of one row, of which an answer needs several for each of its
    tokens: there oneDNN takes up to twice the time. What needs a row's bits not to depend on the
    number of rows must not use such a model."""
    for layer in model.modules():
        if is_by_onednn(layer):
            layer.forward = partial(_product, layer, layer.forward)


def _product(layer: nn.Module, by_onednn: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    is_single = rows.numel() == rows.shape[-1]
    return type(layer).forward(layer, rows) if is_single else by_onednn(rows)


class _Pieces(BaseStreamer):
    """Passes on the text of the tokens that the model writes. All pieces together are the text that
    the tokens have as a whole, so a piece is held back while later tokens can change it."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int], on_piece: OnPiece
    ) -> None:
        self.ids: list[int] = []
        self.text = ""
        self._tokenizer, self._on_piece = tokenizer, on_piece
        self._before = list(before)
        """The last tokens whose text is known; a token's text depends on those before it."""
        self._held: list[int] = []
        self._knows_prompt = False

    def put(self, value: torch.Tensor) -> None:
        if not self._knows_prompt:  # the first call has the prompt
            self._knows_prompt = True
            return
        for token in value.tolist():
            self.ids.append(token)
            self._held.append(token)
            piece = self._new_text()
            self._pass_on("" if self._is_open(token) or piece.endswith("\ufffd") else piece)

    def end(self) -> None:
        """Pass on what is held back; the model has written its last token."""
        self._pass_on(self._new_text())

    def _new_text(self) -> str:
        whole = decoded(self._tokenizer, [*self._before, *self._held])
        return whole[len(decoded(self._tokenizer, self._before)) :]

    def _pass_on(self, piece: str) -> None:
        if piece:
            self._before, self._held = self._held, []
            self.text += piece
        self._on_piece(piece)

    def _is_open(self, token: int) -> bool:
        """Whether later tokens can change the text: after a byte of a character, or after a token
        without text, before which there may be such a byte."""
        name = str(self._tokenizer.convert_ids_to_tokens(token))
        return bool(_BYTE.fullmatch(name)) or not decoded(self._tokenizer, [token])
