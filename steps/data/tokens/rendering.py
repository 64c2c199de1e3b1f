"""Render conversations as text, only with the tokenizer's own chat template.

A template is a program, which may raise any error on unusual rows. Such an error drops the row and
never ends the job. Templates write their own BOS, so rendered text is always encoded with
`add_special_tokens=False`.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.data.images.finding import MARK, parts_of
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message
from steps.data.tokens.call_arguments import Call, Way, as_function, fitted, way_of
from steps.shared.common_prefix import shared_length

if TYPE_CHECKING:
    from jinja2 import nodes
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]
"""The start and end of a range of characters or tokens."""


@dataclass(frozen=True)
class Chat:
    """The input of a template: messages, tools, and the template's own keyword arguments."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] | None = None
    template_kwargs: Mapping[str, Any] | None = None

    def until(self, count: int) -> "Chat":
        """The same chat with its first `count` messages only."""
        if count == len(self.messages):
            return self
        return replace(self, messages=self.messages[:count])


@dataclass(frozen=True)
class ChatFormat:
    """A tokenizer, and how its template and vocabulary mark turns.

    Attributes:
        special_tokens: the special tokens that the template gets, by name: `bos_token` and so on.
        special: matches the text of any special token.
        looked_for: matches what the template itself may look for in a text, such as `<think>`.
        opening: white space that the template writes between the header and an assistant's text,
            as Mistral's does: the model has to write it too, so it belongs to the text.
        closing: what the template writes after an assistant's text to end the turn: a run of
            special tokens, up to and with the end of sequence or up to the next header; where
            there is none, up to the first added token, which then counts as special; where there
            is neither, all of it.
        between_turns: the same where another turn follows, as far as it differs (gpt-oss).
        header: what the template writes before an assistant's text when it is asked to.
        marks_generation: the template marks assistant turns itself, with `{% generation %}`, and
            where jinja knows the positions of these blocks.
        late_header: what opens an assistant's turn only once the turn is there, whatever is asked.
        in_parts: the template is a processor's, which takes the content of a message in parts.
    """

    tokenizer: "PreTrainedTokenizerBase"
    special_tokens: Mapping[str, Any]
    special: re.Pattern[str]
    looked_for: re.Pattern[str]
    opening: str
    closing: str
    marks_generation: bool
    between_turns: str = ""
    header: str = ""
    late_header: str = ""
    in_parts: bool = False

    @property
    def eos(self) -> str:
        return str(self.special_tokens["eos_token"])

    @cached_property
    def ends(self) -> list[str]:
        """The texts of the tokens that end a turn or the whole text."""
        closing = self.special.findall(self.closing + self.between_turns)
        return sorted({self.eos, *closing})

    @cached_property
    def final(self) -> list[str]:
        """The last tokens of a turn."""
        ends = (self.special.findall(end)[-1:] for end in (self.closing, self.between_turns))
        return sorted({self.eos, *(token for end in ends for token in end)})

    @cached_property
    def last(self) -> str:
        """The token at which an answer is over, as nothing follows it there; it need not be the end
        of sequence (base models with ChatML). Empty if the template writes none."""
        return next(iter(self.special.findall(self.closing)[-1:]), "")

    @cached_property
    def opener(self) -> str:
        """The special token that opens an assistant's turn, if one does."""
        found = self.special.findall(self.header or self.late_header)
        return next((token for token in found if token != self.eos), "")

    @cached_property
    def _ways(self) -> Mapping[tuple[bool, bool], Way]:
        """How the template takes the arguments of calls, by whether a chat has tools and whether a
        call is nested. The same for every row, whatever its own calls are."""
        both = (False, True)
        return {(tools, nested): _way(self, tools, nested) for tools, nested in product(both, both)}

    def fitted(self, chat: Chat) -> Chat:
        """The chat with the arguments of its calls as the template takes them.

        Raises:
            MalformedRow: it takes objects, and arguments are damaged JSON.
        """
        if not any(message.get("tool_calls") for message in chat.messages):
            return chat
        has_tools = chat.tools is not None
        ways: dict[bool, Way] = {n: self._ways[has_tools, n] for n in (False, True)}
        try:
            messages = tuple(_with_fitted_calls(message, ways) for message in chat.messages)
        except ValueError as error:
            raise MalformedRow("template refuses the conversation", str(error)) from None
        return replace(chat, messages=messages)

    def added(self, header: str, asked: str) -> str:
        """The part of `header` after its common beginning with `asked`; no token is cut in two."""
        shared = shared_length(header, asked)
        cut = (m.start() for m in self.special.finditer(header) if m.start() < shared < m.end())
        return header[next(cut, shared) :]

    def run_of_special(self, text: str) -> int:
        """Where the first run of special tokens in `text` ends: after an end of sequence, or before
        the opener of a turn or any other text; 0 if there is no special token."""
        end = 0
        for match in self.special.finditer(text):
            if (end and match.start() != end) or match.group() == self.opener:
                break
            end = match.end()
            if match.group() == self.eos:
                break
        return end


def chat_format(tokenizer: "PreTrainedTokenizerBase", *, in_parts: bool = False) -> ChatFormat:
    """What :mod:`steps.data.tokens.spans` needs to know of a tokenizer, found by asking its
    template.

    Raises:
        ValueError: the tokenizer is a slow one, which does not report the characters of a token.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"{tokenizer.name_or_path}: {type(tokenizer).__name__} is a slow tokenizer, which does "
            "not say where its tokens lie in a text, so nothing could be masked exactly; save it "
            "with a tokenizer.json"
        )
    special = _special_tokens(tokenizer)
    found = ChatFormat(
        tokenizer,
        tokenizer.special_tokens_map,
        special,
        _looked_for(_templates(tokenizer), {MARK} if in_parts else set()),
        "",
        str(tokenizer.eos_token or ""),
        all(map(_marks_generation, _templates(tokenizer))),
        in_parts=in_parts,
    )
    return _probed(found)


def render(chat_format: ChatFormat, chat: Chat, *, header: bool = False) -> str:
    """The text of a chat; with `header`, followed by the generation prompt.

    Raises:
        MalformedRow: the template refuses the chat.
    """
    return _rendered(chat_format, chat, add_generation_prompt=header)[0]


def render_marked(chat_format: ChatFormat, chat: Chat) -> tuple[str, list[Span]]:
    """The text of a chat, and the positions of the template's `{% generation %}` blocks in it.

    Raises:
        MalformedRow: the template refuses the chat.
    """
    text, blocks = _rendered(chat_format, chat, return_assistant_tokens_mask=True)
    return text, [tuple(block) for block in blocks]


def load_tokenizer(path: str | Path) -> "PreTrainedTokenizerBase":
    """The tokenizer in the folder `path`, with its chat template. Code in the folder is not run.

    A template that asks for today's date gets a fixed date, so that equal rows have equal tokens on
    any day. Prompts for generation must therefore use this tokenizer too.

    Raises:
        FileNotFoundError: `path` is not a folder.
        ValueError: the tokenizer has no chat template or no end-of-sequence token.
    """
    tokenizer = load_bare_tokenizer(path)
    if not tokenizer.chat_template:
        raise ValueError(
            f"{path}: the tokenizer has no chat template, so it cannot tell turns apart; use the "
            "model's chat or instruct variant, or put a chat_template.jinja into the folder"
        )
    tokenizer.chat_template = _prepared(tokenizer.chat_template)
    return tokenizer


def load_bare_tokenizer(path: str | Path) -> "PreTrainedTokenizerBase":
    """The tokenizer saved in the folder `path`, which may lack a chat template.

    Raises:
        FileNotFoundError: `path` is no folder.
        ValueError: the tokenizer has no end-of-sequence token.
    """
    from transformers import AutoTokenizer

    if not Path(path).is_dir():
        raise FileNotFoundError(f"{path}: no such folder; expected one with a saved tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(
        str(path), local_files_only=True, trust_remote_code=False
    )
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"{path}: the tokenizer has no eos_token, so responses would have no end; name one in "
            "tokenizer_config.json"
        )
    return tokenizer


def _rendered(chat_format: ChatFormat, chat: Chat, **settings: bool) -> tuple[str, Any]:
    """The text, and positions of blocks if requested, of a chat with fitted arguments."""
    return _written(chat_format, chat_format.fitted(chat), **settings)


def _written(chat_format: ChatFormat, chat: Chat, **settings: bool) -> tuple[str, Any]:
    """The text, and positions of blocks if requested. This is `apply_chat_template`, but without a
    new look-up of the tokenizer's special tokens for every chat."""
    from transformers.utils.chat_template_utils import render_jinja_template

    keywords = dict(chat.template_kwargs or {})
    if taken := sorted(keywords.keys() & (_reserved() | chat_format.special_tokens.keys())):
        raise MalformedRow(
            "template refuses the conversation",
            f"template_kwargs names {', '.join(taken)}, which only the pipeline may set",
        )
    tools: Any = None if chat.tools is None else [as_function(tool) for tool in chat.tools]
    try:
        texts, blocks = render_jinja_template(
            [[_for_template(message, chat_format.in_parts) for message in chat.messages]],
            tools=tools,
            chat_template=chat_format.tokenizer.get_chat_template(tools=tools),
            **settings,
            **{**chat_format.special_tokens, **keywords},
        )
    except Exception as error:
        raise MalformedRow(
            "template refuses the conversation", f"{type(error).__name__}: {error}"
        ) from None
    return texts[0], blocks[0] if blocks else []


def _for_template(message: Message, in_parts: bool) -> dict[str, Any]:
    given = {key: value for key, value in message.items() if value is not None}
    if in_parts:
        given["content"] = parts_of(message)
    elif "images" in message:
        raise ValueError("a message has images, and the model's folder has no processor of images")
    given.pop("images", None)
    return given


def _with_fitted_calls(message: Message, ways: Mapping[bool, Way]) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    changed: dict[str, Any] = {**message}
    changed["tool_calls"] = [
        fitted(call, ways[isinstance(call.get("function"), Mapping)]) for call in calls
    ]
    return Message(**changed)


def _way(chat_format: ChatFormat, has_tools: bool, nested: bool) -> Way:
    """How the template takes arguments, from a call with and without the tool's result."""
    about = {"name": "look_up", "description": "", "parameters": {"type": "object"}}
    tools = ({"type": "function", "function": about},) if has_tools else None
    question: Message = {"role": "user", "content": "Hello"}
    after: tuple[Message, ...] = (
        {"role": "tool", "content": "1", "name": "look_up", "tool_call_id": "TemperId1"},
        {"role": "assistant", "content": "One."},
    )

    def written(call: Call, results: tuple[Message, ...]) -> str:
        calling: Message = {"role": "assistant", "content": "", "tool_calls": [dict(call)]}
        return _written(chat_format, Chat((question, calling, *results), tools))[0]

    for results in (after, ()):
        way = way_of(partial(written, results=results), nested=nested)
        if way is not None:
            return way
    return "object"


@cache
def _reserved() -> frozenset[str]:
    from transformers import PreTrainedTokenizerBase
    from transformers.utils.chat_template_utils import render_jinja_template

    parameters = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
    rendering = inspect.signature(render_jinja_template).parameters
    names = {"messages", "compiled_template", *parameters, *rendering, *_SPECIAL_TOKENS}
    return frozenset(names - {"kwargs"})


_SPECIAL_TOKENS = [
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
] + ["additional_special_tokens", "extra_special_tokens"]
"""Names of special tokens. They belong to the tokenizer, so rows must not set them."""


def _special_tokens(tokenizer: "PreTrainedTokenizerBase") -> re.Pattern[str]:
    added = (str(t) for t in tokenizer.added_tokens_decoder.values() if t.special)
    return re.compile(any_of({*added, *map(str, tokenizer.all_special_tokens)} - {""}))


def added_tokens(tokenizer: "PreTrainedTokenizerBase") -> set[str]:
    """The texts of added tokens, except runs of white space, which never end a turn."""
    added = map(str, tokenizer.added_tokens_decoder.values())
    return {text for text in added if text.strip()}


def any_of(texts: Iterable[str]) -> str:
    """A regular expression that matches any of the texts, the longest that fits."""
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    return "|".join(map(re.escape, longest_first)) or r"(?!)"


def _templates(tokenizer: "PreTrainedTokenizerBase") -> list[str]:
    written = tokenizer.chat_template
    return list(written.values()) if isinstance(written, dict) else [str(written)]


def _program_of(template: str) -> "nodes.Template | None":
    """The parsed template; None for one that refuses every row, and each row says so."""
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import _compile_jinja_template  # slow to import

    try:
        return _compile_jinja_template(template).environment.parse(template)
    except (TemplateError, SyntaxError):
        return None


def _marks_generation(template: str) -> bool:
    """Whether a template has `{% generation %}` blocks, all outside captured text. In a macro,
    `{% set %}`, `{% call %}`, `{% filter %}` or recursive loop, jinja's positions of the blocks are
    wrong, as they count from the last piece written outside."""
    from jinja2 import nodes

    def is_generation(block: nodes.CallBlock) -> bool:
        return getattr(block.call.node, "name", "") == "_generation_support"

    def blocks(within: nodes.Node) -> list[nodes.CallBlock]:
        return list(filter(is_generation, within.find_all(nodes.CallBlock)))

    if (program := _program_of(template)) is None:
        return False
    kinds = (nodes.Macro, nodes.AssignBlock, nodes.CallBlock, nodes.FilterBlock, nodes.For)
    capturing = (
        node
        for node in program.find_all(kinds)
        if not isinstance(node, nodes.For) or node.recursive
    )
    return bool(blocks(program)) and not any(map(blocks, capturing))


def _looked_for(templates: list[str], also: set[str]) -> re.Pattern[str]:
    """The texts that a template holds as values, with a sign in them, in a group of their own."""
    from jinja2 import nodes

    found = {"<think>", "</think>", *also}
    for program in filter(None, map(_program_of, templates)):
        values = (str(node.value).strip() for node in program.find_all(nodes.Const))
        found |= {value for value in values if _MARK.fullmatch(value)}
    return re.compile(f"({any_of(found)})")


_MARK = re.compile(r"(?=.{3,40}\Z)(?=.*[^\w\s])\S+")
"""Three to forty characters without white space, of which at least one is punctuation."""

_PROBE = "Temper probes this turn"


def _probed(chat_format: ChatFormat) -> ChatFormat:
    """The format completed with the texts that its template writes around a plain answer."""
    question: Message = {"role": "user", "content": "Hello"}
    answer: Message = {"role": "assistant", "content": _PROBE}
    try:
        asked = render(chat_format, Chat((question,)))
        header = render(chat_format, Chat((question,)), header=True)
        before, found, rest = render(chat_format, Chat((question, answer))).rpartition(_PROBE)
    except MalformedRow:  # it wants more than a question and an answer; most templates close so
        return chat_format
    if not found:
        return chat_format
    gap = before.removeprefix(header)
    late = before.startswith(header) and header == asked and gap.strip()
    special, end = chat_format.special, chat_format.special.search(rest)
    if end is None and (end := re.search(any_of(added_tokens(chat_format.tokenizer)), rest)):
        special = re.compile(f"{re.escape(end.group())}|{special.pattern}")
    probed = replace(
        chat_format,
        special=special,
        header=chat_format.added(header, asked),
        late_header=gap if late else "",
        opening=gap if before.startswith(header) and gap.isspace() else "",
    )
    closing = rest[: probed.run_of_special(rest)] if end else rest
    between = _between_turns(probed, (question, answer)) if end and closing else ""
    other = "" if between.startswith(closing) else between[: probed.run_of_special(between)]
    return replace(probed, closing=closing, between_turns=other)


def _between_turns(chat_format: ChatFormat, turns: tuple[Message, Message]) -> str:
    """What the template writes between an answer and the next question."""
    question, answer = turns
    again: Message = {"role": "user", "content": "And then?"}
    try:
        text = render(chat_format, Chat((question, answer, again, answer)))
    except MalformedRow:
        return ""
    return text.partition(_PROBE)[2].partition(again["content"])[0]


_DATE = datetime(2024, 7, 26)
"""Llama 3.1's own fallback date."""

_LETTERS = [*"aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyYZ"]
_DIRECTIVES = [f"%{letter}" for letter in _LETTERS] + [f"%-{letter}" for letter in "dmyHIMSj"]
"""All directives of `strftime` that depend only on the date and contain no quote."""

_REPLACED = "".join(
    f" | map('replace', {directive!r}, {_DATE.strftime(directive)!r})" for directive in _DIRECTIVES
)
_FIXED_CLOCK = (
    "{%- macro strftime_now(format) -%}{{ format.split('%%')"
    + _REPLACED
    + " | join('%') }}{%- endmacro -%}"
)
"""A macro for the template that shadows transformers' global function of the same name."""


_THINKING = re.compile(
    r"(\bm(?:essage|sg)?(?:\.|\[['\"]|\.get\(['\"]))thinking\b"
    r"|(['\"])thinking(?=\2 (?:not )?in m(?:essage|sg)?\b)"
)
"""The key of a message that gpt-oss's and some of LFM's templates read its reasoning from."""


def _prepared(template: str | Mapping[str, str]) -> Any:
    """A template, or several by name, with a fixed clock, without a byte order mark, and with
    Temper's name for the key of a message's reasoning."""
    if not isinstance(template, str):
        return {name: _prepared(text) for name, text in template.items()}
    text = template.removeprefix("\ufeff")
    if "reasoning_content" not in text:
        text = _THINKING.sub(lambda found: f"{found[1] or found[2]}reasoning_content", text)
    return _FIXED_CLOCK + text if "strftime_now" in text else text
