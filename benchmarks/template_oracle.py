"""An oracle that finds the author of each character of a rendered conversation, and judges masks.

Every ASCII letter and digit of a message is replaced by a character of a private plane that encodes
the message and the letter. The template renders the result. Mapped back, it must equal the
rendering of the true words; then the author of each letter is known. This method has nothing in
common with that of `steps.data`: no slots, no searching, no rules of spans.

The rules for masks are stated here independently, as in a check by hand:

* no letter of another message is trained on, and every letter of a trained turn is;
* a turn is trained on from the end of the generation prompt on, or a notice reports otherwise;
* the end of sequence is trained on if the template writes it among the tokens after the words;
  nothing after it is trained on, and no token that opens the next turn;
* all turns of one template end in the same way: plain answers, reasoning and calls;
* everything that the template leaves out is reported;
* ids are those of the whole text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PLANE = 0xF0000
LETTERS = re.compile(r"[A-Za-z0-9]")
Message = Mapping[str, Any]


@dataclass(frozen=True)
class Conversation:
    """Messages that end with the assistant's, and other arguments of the template."""

    name: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True)
class Made:
    """A tokenised conversation: ids and mask up to the last trained token, and notices; or the
    reason why it was refused."""

    ids: Sequence[int] = ()
    mask: Sequence[bool] = ()
    told: frozenset[str] = frozenset()
    refused: str = ""
    detail: str = ""


@dataclass
class Verdict:
    """The errors of a result; `end` are the tokens that end its last turn."""

    wrong: list[str] = field(default_factory=list)
    end: str = ""
    kind: str = ""
    no_oracle: bool = False
    raises: bool = False


class Oracle:
    """Judges masks of one tokenizer and its template."""

    def __init__(self, tokenizer: Any, special: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.eos = str(tokenizer.eos_token)
        self.names = True
        longest = sorted(map(re.escape, special), key=len, reverse=True)
        self.special = re.compile("|".join(longest))

    def judge(self, conversation: Conversation, turns: Sequence[int], made: Made) -> Verdict:
        """The errors of `made`, which should train on the messages `turns`."""
        verdict = Verdict()
        try:
            text = self.render(conversation.messages, conversation.tools)
        except Exception:
            verdict.raises = True
            if not made.refused:
                verdict.wrong.append("kept though the template raises")
            return verdict
        found = self._authors(conversation, text)
        if found is None:
            verdict.no_oracle = True
            return verdict
        authors, self.names = found
        if made.refused:
            if made.refused == "assistant turn not found in the rendered text" and all(
                self._is_written(conversation, authors, turn) for turn in turns
            ):
                verdict.wrong.append("refused though traceable")
            return verdict
        _Judging(self, verdict, conversation, text, authors, turns, made).judge()
        return verdict

    # --- authors ---------------------------------------------------------------------------------

    def render(self, messages: Sequence[Message], tools: Any, header: bool = False) -> str:
        return self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] if tools else None,
            tokenize=False,
            add_generation_prompt=header,
        )

    def _authors(
        self, conversation: Conversation, text: str
    ) -> tuple[list[int | None], bool] | None:
        """The author of each character, and whether names of functions are marked."""
        for names in (True, False):
            marked = [
                _marked_message(message, index, names)
                for index, message in enumerate(conversation.messages)
            ]
            try:
                shown = self.render(marked, conversation.tools)
            except Exception:
                continue
            if "".join(map(_true_letter, shown)) == text:
                return [_author(character) for character in shown], names
        return None

    def _is_written(
        self, conversation: Conversation, authors: Sequence[int | None], turn: int
    ) -> bool:
        """Whether all letters of a turn are written, without letters of others among them."""
        own = [at for at, author in enumerate(authors) if author == turn]
        parts = _parts(conversation.messages[turn], self.names)
        needed = (*parts["content"], *parts["call"])
        said = sum(len(LETTERS.findall(text)) for text in needed)
        if not own or len(own) < said:
            return False
        within = set(authors[own[0] : own[-1] + 1])
        return within <= {turn, None}

    def run(self, rest: str) -> list[str]:
        """The special tokens that follow each other without a gap, from the first one on."""
        run: list[str] = []
        end = None
        for match in self.special.finditer(rest):
            if end is not None and match.start() != end:
                break
            run.append(match.group())
            end = match.end()
            if match.group() == self.eos:
                break
        return run

    def opener(self, conversation: Conversation) -> str:
        question = conversation.messages[:1] if conversation.messages[0]["role"] == "user" else ()
        if not question:
            return ""
        try:
            asked = self.render(question, None)
            prompt = self.render(question, None, header=True)
        except Exception:
            return ""
        at = 0
        for match in self.special.finditer(asked):
            at = match.end() if prompt.startswith(asked[: match.end()]) else at
        found = self.special.findall(prompt[at:]) if prompt != asked else []
        return next((token for token in found if token != self.eos), "")


@dataclass
class _Judging:
    """A rendered conversation and what was made of it; errors are added to the verdict."""

    oracle: Oracle
    verdict: Verdict
    conversation: Conversation
    text: str
    authors: Sequence[int | None]
    turns: Sequence[int]
    made: Made

    def judge(self) -> None:
        trained = self._characters()
        if trained is None:
            self.verdict.wrong.append("ids are not those of the text")
            return
        for at, author in enumerate(self.authors):
            if trained[at] and author is not None and author not in self.turns:
                self.verdict.wrong.append("a letter of another message is trained on")
                return
        self._judge_losses()
        for turn in self.turns:
            own = [at for at, author in enumerate(self.authors) if author == turn]
            later = [at for at, a in enumerate(self.authors) if a is not None and a > turn]
            own = [at for at in own if not own or not later or at < _after(own[0], later)]
            if not own:
                continue
            if not all(trained[at] for at in own) and "merged" not in self.made.told:
                self.verdict.wrong.append("a letter of a trained turn is not trained on")
            self._judge_start(turn, own[0], trained)
            self._judge_end(turn, own[-1], trained)

    def _characters(self) -> list[bool] | None:
        """For each character, whether all tokens that hold a part of it are trained on; ``None`` if
        the ids are not those of the text."""
        data, said = self.text.encode(), b""
        flags: list[bool] = []
        for token, flag in zip(self.made.ids, self.made.mask, strict=True):
            said += (piece := token_bytes(self.oracle.tokenizer, token))
            flags += [flag] * len(piece)
        if not data.startswith(said):
            return None
        flags += [False] * (len(data) - len(flags))
        characters, at = [], 0
        for character in self.text:
            size = len(character.encode())
            characters.append(all(flags[at : at + size]))
            at += size
        return characters

    def _judge_losses(self) -> None:
        lost, messages = False, self.conversation.messages
        for index, message in enumerate(messages):
            marks = sum(author == index for author in self.authors)
            parts = _parts(message, self.oracle.names)
            wanted = ["content", "call"] + (["reasoning"] if index in self.turns else [])
            lost |= marks < sum(len(LETTERS.findall(t)) for kind in wanted for t in parts[kind])
        told = {"messages_lost", "calls_lost", "reasoning_lost"} & self.made.told
        if lost and not told:
            self.verdict.wrong.append("a message or call is lost, untold")
        calls = sum(len(message.get("tool_calls") or ()) for message in messages)
        if not lost and told and calls < 2:  # of several calls, one may be written twice
            self.verdict.wrong.append("told that something is lost which is not")

    def _judge_start(self, turn: int, first: int, trained: Sequence[bool]) -> None:
        text, made, wrong = self.text, self.made, self.verdict.wrong
        tools, before = self.conversation.tools, self.conversation.messages[:turn]
        others = [at for at in range(first) if self.authors[at] is not None]
        between = range(others[-1] + 1 if others else 0, first + 1)
        if others and trained[others[-1]]:  # the end of a turn that is trained on, just before
            between = range(next((at for at in between if not trained[at]), first), first + 1)
        begins = next(at for at in between if trained[at] or at == first)
        try:
            prompt = self.oracle.render(before, tools, header=True)
        except Exception:
            return
        if text.startswith(prompt) and len(prompt) <= first:
            added = prompt != self.oracle.render(before, tools)
            spaces = text[begins : len(prompt)].isspace()
            alone = len(self.turns) == 1
            if begins == len(prompt) and added and "rewritten" in made.told and alone:
                wrong.append("told of another prompt though it is the same")
            if begins != len(prompt) and added and not (spaces and "merged" in made.told):
                if begins > len(prompt) and {"merged", "rewritten"} & made.told:
                    return
                wrong.append("a turn does not begin at the generation prompt")
        elif "rewritten" not in made.told:
            wrong.append("another prompt than generation's, untold")

    def _judge_end(self, turn: int, last: int, trained: Sequence[bool]) -> None:
        text, authors, oracle, verdict = self.text, self.authors, self.oracle, self.verdict
        messages = self.conversation.messages
        following = [at for at in range(last + 1, len(text)) if authors[at] is not None]
        rest = text[last + 1 : following[0] if following else len(text)]
        ends = last + 1
        while ends < len(text) and ends < last + 1 + len(rest) and trained[ends]:
            ends += 1
        end = text[last + 1 : ends]
        found = [match.group() for match in oracle.special.finditer(end)]
        if oracle.eos in found[:-1]:
            verdict.wrong.append("something after the end of sequence is trained on")
        follows = following and trained[following[0]]  # a turn that is trained on, just after
        alone = not following or (authors[following[0]] == turn + 1 and not follows)
        if alone and any(trained[ends : last + 1 + len(rest)]):
            verdict.wrong.append("something after the end of the turn is trained on")
        if oracle.eos in oracle.run(rest) and oracle.eos not in found:
            verdict.wrong.append("the end of sequence is not trained on")
        opener = oracle.opener(self.conversation)
        if opener and opener in found:
            verdict.wrong.append("the next header is trained on")
        if turn == len(messages) - 1:
            verdict.end = found[-1] if found else ""
            verdict.kind = "call" if messages[turn].get("tool_calls") else "plain"


def token_bytes(tokenizer: Any, token: int) -> bytes:
    """The bytes that a token of a byte-level tokenizer stands for."""
    piece = tokenizer.convert_ids_to_tokens(token)
    if token in tokenizer.added_tokens_decoder:
        return piece.encode()
    return bytes(_BYTES[character] for character in piece)


def _byte_alphabet() -> dict[str, int]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTES = _byte_alphabet()


def _after(first: int, positions: Sequence[int]) -> int:
    return next((at for at in positions if at > first), positions[-1] + 1)


def _marked(text: str, message: int) -> str:
    return LETTERS.sub(lambda found: chr(PLANE + 128 * message + ord(found.group())), text)


def _true_letter(character: str) -> str:
    return chr((ord(character) - PLANE) % 128) if ord(character) >= PLANE else character


def _author(character: str) -> int | None:
    return (ord(character) - PLANE) // 128 if ord(character) >= PLANE else None


def _marked_message(message: Message, index: int, names: bool) -> dict[str, Any]:
    marked = dict(message)
    kept = re.split(r"(</?think>)", message["content"])
    marked["content"] = "".join(
        part if position % 2 else _marked(part, index) for position, part in enumerate(kept)
    )
    if "reasoning_content" in marked:
        marked["reasoning_content"] = _marked(marked["reasoning_content"], index)
    if "tool_calls" in marked:
        marked["tool_calls"] = [
            {
                **call,
                "function": {
                    "name": _marked(call["function"]["name"], index)
                    if names
                    else call["function"]["name"],
                    "arguments": {
                        key: _marked(value, index) if isinstance(value, str) else value
                        for key, value in call["function"]["arguments"].items()
                    },
                },
            }
            for call in marked["tool_calls"]
        ]
    return marked


def _parts(message: Message, names: bool) -> dict[str, list[str]]:
    """The texts of a message that are marked."""
    *reasoning, content = re.split("</think>", message["content"])
    reasoned = [re.sub("<think>", "", text) for text in reasoning]
    calls = [
        text
        for call in message.get("tool_calls") or ()
        for text in (
            *([call["function"]["name"]] if names else []),
            *(v for v in call["function"]["arguments"].values() if isinstance(v, str)),
        )
    ]
    return {
        "content": [re.sub("<think>", "", content)],
        "reasoning": [*reasoned, message.get("reasoning_content", "")],
        "call": calls,
    }
