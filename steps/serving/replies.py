"""Generate a model's answer piece by piece, from the same prompts as in evaluation.

The code that renders prompts for ``sample_completions`` and ``evaluate`` also renders these, and at
temperature 0 the answers are the same; the code that draws tokens is the same, too. A model without
a chat template continues plain text. Decoding settings that a model ships with are ignored.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message
from steps.data.tokens.rendering import Chat, load_bare_tokenizer, load_tokenizer
from steps.data.tokens.tokenizing import tokenization, tokenize_prompts
from steps.generation.alone import AloneEngine
from steps.generation.config import SamplingConfig
from steps.generation.sampling import decoded, end_tokens, make_requests
from steps.models.config import Dtype
from steps.models.folders import evaluating, language_model_of, load_as
from steps.models.positions import forget_lengths
from steps.shared.matmul import is_by_onednn

Hear = Callable[[str, tuple[int, Tensor] | None], None]
"""Called for each token with the text that is new, which is empty after a part of a character, and
with the token and the logits [V] from which it was drawn; at the end with the text held back."""


class Enough(Exception):
    """Raised by a `Hear` to end an answer."""


class TooLong(ValueError):
    """A prompt leaves no room for an answer."""


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
        for layer in self.model.modules() if alone else ():
            if is_by_onednn(layer):  # which takes up to twice the time for one row, as of a token
                del layer.forward

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
        self, ids: Sequence[int], drawing: SamplingConfig, hear: Hear, continues: bool = False
    ) -> bool:
        """Write after these tokens; return whether the model ended its answer itself.

        If it continues their text, it keeps the space before its first word; tokenizers like
        Llama 2's remove that space at the beginning of a text.

        Raises ValueError if there are no tokens, or more than the model has positions for.
        """
        pieces, drawn = Pieces(self.tokenizer, ids if continues else ()), [-1]

        def hear_token(token: int, logits: Tensor) -> None:
            drawn[0] = token
            hear(pieces.add(token), (token, logits))

        most = min(drawing.max_new_tokens, self.room_after(ids))
        (request,) = make_requests([("", ids)], replace(drawing, max_new_tokens=most), self._ends)
        try:
            with suppress(Enough):
                AloneEngine(self.model, "").write(request, hear_token)
                hear(pieces.end(), None)
        except FloatingPointError as error:
            raise ValueError("the model's logits are not numbers; look at its training") from error
        return drawn[0] in self._ends

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


class Pieces:
    """The text of tokens, piece by piece. A piece that later tokens may change is held back.

    Args:
        before: tokens before the first one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int] = ()) -> None:
        self._tokenizer, self._before = tokenizer, list(before)
        self._held: list[int] = []

    def add(self, token: int) -> str:
        """The text that is known with this token."""
        self._held.append(token)
        piece = self.end()
        # There may be a byte of a character before a token without text.
        if piece.endswith("\ufffd") or not decoded(self._tokenizer, [token]):
            return ""
        if piece:
            self._before, self._held = self._held, []
        return piece

    def end(self) -> str:
        """What is held back, after the last token."""
        whole = decoded(self._tokenizer, [*self._before, *self._held])
        return whole[len(decoded(self._tokenizer, self._before)) :]
