r"""A task whose answers can be checked: "What is 27 + 35?" is to be answered "\boxed{62}".

Both numbers are in 10..49, so there are 1,600 problems, all sums have two digits, and every problem
needs at most one carry. Half of the demonstrations for supervised fine-tuning come from an
annotator who forgets the carry. A model trained on them knows the format but is often wrong, and
preference training should correct this. Held-out problems are never shown in training (but 35 + 27
may be, if 27 + 35 is held out).

This module also builds the tokenizer: one token for each word, digit or symbol. Spaces are tokens
or belong to the following word, so decoding restores the text.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from steps.data.rows.parquet import write_rows
from steps.data.rows.rows import ConversationRow, Message, PromptRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

OPERANDS = range(10, 50)


@dataclass(frozen=True)
class Problem:
    """One question. `answer` is the number alone, as a string."""

    left: int
    right: int

    @property
    def prompt(self) -> PromptRow:
        question: Message = {"role": "user", "content": f"What is {self.left} + {self.right}?"}
        return PromptRow(f"{self.left}+{self.right}", (question,), self.answer)

    @property
    def answer(self) -> str:
        return str(self.left + self.right)

    @property
    def answer_without_carry(self) -> str:
        """Digits added column by column; equal to `answer` where no carry arises."""
        units = (self.left + self.right) % 10
        return str(10 * (self.left // 10 + self.right // 10) + units)


def sample_problems(
    seed: int, train: int = 1100, test: int = 500
) -> tuple[list[Problem], list[Problem]]:
    """`train` and `test` different problems, in random order.

    Raises:
        ValueError: more are asked for than the 1,600 there are.
    """
    every = [Problem(left, right) for left in OPERANDS for right in OPERANDS]
    if train < 0 or test < 0 or train + test > len(every):
        raise ValueError(f"{train} + {test} problems asked for; there are {len(every)}")
    random.Random(f"problems {seed}").shuffle(every)
    return every[:train], every[train : train + test]


def demonstrations(problems: Sequence[Problem], seed: int) -> list[ConversationRow]:
    """Each problem with a demonstrated response, in order. A random half forgets the carry."""
    count = len(problems)
    careless = set(random.Random(f"annotators {seed}").sample(range(count), count // 2))
    return [
        _answered(problem, problem.answer_without_carry if index in careless else problem.answer)
        for index, problem in enumerate(problems)
    ]


def _answered(problem: Problem, answer: str) -> ConversationRow:
    asked = problem.prompt
    response: Message = {"role": "assistant", "content": boxed(answer)}
    return ConversationRow(asked.row, (*asked.prompt, response))


def write_task(
    folder: Path,
    shown: Sequence[ConversationRow],
    prompts: Sequence[PromptRow],
    held_out: Sequence[PromptRow],
) -> dict[str, int]:
    """Write the demonstrations of `prompts`, one of each, and the prompts of both splits; return
    counts."""
    from steps.data.rows.tables import CONVERSATIONS, PROMPTS, to_record

    demonstrated = folder / "sft" / "conversations-00000.parquet"
    write_rows(demonstrated, CONVERSATIONS, map(to_record, shown))
    for split, asked in (("train", prompts), ("test", held_out)):
        write_rows(folder / split / "prompts-00000.parquet", PROMPTS, map(to_record, asked))
    right = sum(
        demonstration.messages[-1]["content"] == boxed(str(prompt.answer))
        for demonstration, prompt in zip(shown, prompts, strict=True)
    )
    return {"train": len(prompts), "test": len(held_out), "demonstrations_right": right}


def boxed(answer: str) -> str:
    r"""The response the task asks for: `\boxed{62}`."""
    return rf"\boxed{{{answer}}}"


SPECIAL_TOKENS = ("<|pad|>", "<|unk|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
WORDS = (*"0123456789", "What", " is", " +", " ", "?", "\\boxed{", "}")

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' -}}"
    "{%- if message['role'] == 'assistant' -%}"
    "{%- generation -%}{{- message['content'] + eos_token -}}{%- endgeneration -%}"
    "{%- else -%}"
    "{{- message['content'] + eos_token -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """A word-level tokenizer over exactly this task's text; anything else becomes `<|unk|>`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *WORDS))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    pieces = Regex(r"\\boxed\{| ?[A-Za-z+]+|\d|.|\n")
    core.pre_tokenizer = pre_tokenizers.Split(pieces, behavior="isolated")  # pyright: ignore
    core.decoder = decoders.Fuse()  # pyright: ignore
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<|pad|>",
        unk_token="<|unk|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def write_tokenizer(folder: str | Path) -> None:
    """Save `build_tokenizer()` into `folder` as a model folder's tokenizer files."""
    build_tokenizer().save_pretrained(str(folder))
