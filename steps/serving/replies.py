"""Generate a model's answer piece by piece, from the same prompts as in evaluation.

The code that renders prompts for ``sample_completions`` and ``evaluate`` also renders these, and at
temperature 0 the answers are the same; the code that draws tokens is the same, too. A model without
a chat template continues plain text. Decoding settings that a model ships with are ignored.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message
from steps.data.tokens.rendering import Chat, load_bare_tokenizer, load_tokenizer
from steps.data.tokens.tokenizing import tokenization, tokenize_prompts
from steps.generation.alone import AloneEngine, Hear
from steps.generation.config import SamplingConfig
from steps.generation.sampling import end_tokens, make_requests
from steps.models.config import Dtype
from steps.models.folders import evaluating, language_model_of, load_as
from steps.models.positions import forget_lengths
from steps.serving.token_texts import Pieces
from steps.shared.matmul import is_by_onednn

OnPiece = Callable[[str], None]
"""Called after each token with the text that is new; it is empty after a part of a character."""


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


class Speaker:
    """A model and its tokenizer.

    Args:
        alone: whether nobody else samples with the model, who needs bits of a row that do not
            depend on the number of rows.

    Raises FileNotFoundError or ValueError for a folder without a language model or tokenizer.
    """

    def __init__(self, folder: Path, dtype: Dtype | None = None, alone: bool = True) -> None:
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
        if alone:
            _multiply_single_rows_by_pytorch(self.model)

    def answer(
        self, messages: Sequence[Message], drawing: SamplingConfig, on_piece: OnPiece
    ) -> str:
        """The model's next message in a conversation; raises what `prompt_of` and `write` raise."""
        return self.write(self.prompt_of(messages), drawing, on_piece).text

    def go_on(self, text: str, drawing: SamplingConfig, on_piece: OnPiece) -> str:
        """The model's continuation of a text; raises what `write` raises."""
        return self.write(self.tokens_of(text), drawing, on_piece, continues=True).text

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
        self,
        ids: Sequence[int],
        drawing: SamplingConfig,
        on_piece: OnPiece,
        on_token: Hear | None = None,
        continues: bool = False,
    ) -> Written:
        """What the model writes after these tokens.

        If it continues their text, it keeps the space before its first word; tokenizers like
        Llama 2's remove that space at the beginning of a text.

        Args:
            on_token: called with each token, before the piece that is known with it.

        Raises ValueError if there are no tokens, or more than the model has positions for.
        """
        written, texts = list[int](), list[str]()
        pieces = Pieces(self.tokenizer, ids if continues else ())

        def pass_on(piece: str) -> None:
            texts.append(piece)
            on_piece(piece)

        def hear(token: int, logits: Tensor) -> None:
            written.append(token)
            if on_token is not None:
                on_token(token, logits)
            pass_on(pieces.add(token))

        most = min(drawing.max_new_tokens, self.room_after(ids))
        (request,) = make_requests([("", ids)], replace(drawing, max_new_tokens=most), self._ends)
        try:
            with suppress(Enough):
                AloneEngine(self.model, "").write(request, hear)
                pass_on(pieces.end())
        except FloatingPointError as error:
            raise ValueError("the model's logits are not numbers; look at its training") from error
        return Written("".join(texts), written, bool(written) and written[-1] in self._ends)

    @torch.no_grad()
    def logits_of(self, ids: Sequence[int]) -> Tensor:
        """What the model expects after each token: [tokens, vocabulary]."""
        forget_lengths(self.model)
        with evaluating(self.model):
            read = torch.tensor([ids], device=self.model.device)
            return self.model(input_ids=read, use_cache=False).logits[0]

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


def _multiply_single_rows_by_pytorch(model: nn.Module) -> None:
    """Let PyTorch compute the products of one row, of which an answer needs several for each of its
    tokens: there oneDNN takes up to twice the time."""
    for layer in model.modules():
        if is_by_onednn(layer):
            layer.forward = partial(_product, layer, layer.forward)


def _product(layer: nn.Module, by_onednn: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    is_single = rows.numel() == rows.shape[-1]
    return type(layer).forward(layer, rows) if is_single else by_onednn(rows)
