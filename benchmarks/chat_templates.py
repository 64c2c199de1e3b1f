"""Masks for a folder of real chat templates, judged by an oracle; prints a table of errors.

    python -m benchmarks.chat_templates FOLDER [--only NAME] [--cases CASE] [--details]

FOLDER holds `*.jinja` files. Each template gets a small byte-level tokenizer with the special
tokens that it names, and is tested on the conversations below, once for the last turn and once for
all turns. `template_oracle` defines the right masks; it shares no code with the code under test.
"""

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.template_oracle import Conversation, Made, Oracle

_SPECIAL = re.compile(
    r"<\|[^|<>\s{}'\"]{1,40}\|?>|<[^|<>\s{}'\"]{1,40}\|>|<｜[^｜<>{}'\"]{1,40}｜>"
    r"|</?s>|<(?:bos|eos|pad|unk|sep)>|<(?:start|end)_of_\w+>|<(?:start|end|extra)_\w+>"
    r"|\[/?[A-Z][A-Z_]{2,}\]|<\|\"\|>|\[gMASK\]|<sop>|<[a-zA-Z_]+:[a-z_]+>|\[e~\[|\]~[a-z!]*b?\["
)
_PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
          "</tool_response>")  # fmt: skip
_ENDS = (
    "<|END_OF_TURN_TOKEN|>", "<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>", "<turn|>",
    "<｜end▁of▁sentence｜>", "<|return|>", "<|end_of_text|>", "[|endofturn|]", "<|im_sep|>",
    "<|endoftext|>", "<|eom|>", "[e~[", "</s>", "<eos>", "<|end|>", "<|eos|>", "<|endofturn|>",
)  # fmt: skip
"""Candidates for the end-of-sequence token; the first one that a template names is used."""

CALL = {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell it.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "where"}},
            "required": ["city"],
        },
    },
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def called(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    listed = [
        {"type": "function", "id": f"call0000{index}", "function": call}
        for index, call in enumerate(calls)
    ]
    return said(more.pop("text", ""), tool_calls=listed, **more)


def result(text: str, number: int = 0) -> dict[str, Any]:
    return {
        "role": "tool", "name": "weather", "tool_call_id": f"call0000{number}", "content": text,
    }  # fmt: skip


SYSTEM = {"role": "system", "content": "Be brief, please."}
OTHER = {"name": "time", "arguments": {"zone": "CET"}}
THOUGHT = "<think>\nSeven has no divisors\n</think>\n\nYes, prime."


def _case(name: str, *messages: dict[str, Any], tools: bool = False) -> Conversation:
    return Conversation(name, messages, (TOOL,) if tools else None)


_WEATHER = (user("Weather?"), called(CALL), result("sunny"))
CASES = [
    _case("plain", user("Is it?"), said("Yes, it is.")),
    _case("one word", user("Is it?"), said("Yes")),
    _case("same words", user("yes"), said("yes"), user("yes"), said("yes")),
    _case("system", SYSTEM, user("Is it?"), said("Yes, it is.")),
    _case("two turns", user("One?"), said("First one."), user("Two?"), said("Second.")),
    _case("system, three turns", SYSTEM, user("A?"), said("Aa."), user("B?"), said("Bb."),
          user("C?"), said("Cc.")),
    _case("spaces", user(" so "), said(" and so on ")),
    _case("lines", user("go\non"), said("\n\n  two lines\n\nand more\n")),
    _case("not ASCII", user("東京は？"), said("Ça va: 東京 ü – ½ fin.")),
    _case("emoji", user("👩‍👩‍👧‍👦 ok?"), said("🎉👍🏽 yes 🏳️‍🌈")),
    _case("quotes", user('a "b" c'), said("d \"e\" 'f' \\ g {h}")),
    _case("code", user("code"), said("```python\nprint('x')\n```")),
    _case("answer in question", user("say Yes, it is."), said("Yes, it is.")),
    _case("empty earlier", user("a b"), said(""), user("c d"), said("efg")),
    _case("think in text", user("Is 7 prime?"), said(THOUGHT)),
    _case("think in text earlier", user("Is 7?"), said(THOUGHT), user("Is 8?"), said("No, not.")),
    _case("think in both", user("Is 7?"), said(THOUGHT), user("8?"), said(THOUGHT)),
    _case("reasoning", user("Is 7 prime?"), said("Yes.", reasoning_content="No divisors there.")),
    _case("reasoning, two turns",
          user("Is 7 prime?"), said("Yes.", reasoning_content="No divisors there."),
          user("And 8?"), said("No.", reasoning_content="Two divides it.")),
    _case("tools unused", user("Is it?"), said("Yes, it is."), tools=True),
    _case("call last", user("Weather?"), called(CALL), tools=True),
    _case("call last, text", user("Weather?"), called(CALL, text="Let me see."), tools=True),
    _case("call last, reasoning", user("Weather?"), called(CALL, reasoning_content="I must ask."),
          tools=True),
    _case("two calls last", user("Weather?"), called(CALL, OTHER), tools=True),
    _case("tool round", *_WEATHER, said("It is sunny there."), tools=True),
    _case("tool round, no tools", *_WEATHER, said("It is sunny there.")),
    _case("tool round, reasoning",
          user("Weather?"), called(CALL, reasoning_content="I must ask."),
          result("sunny"), said("It is sunny.", reasoning_content="So it is."), tools=True),
    _case("two results", user("Weather?"), called(CALL, OTHER), result("sunny"),
          result("late", 1), said("Sunny and late."), tools=True),
    _case("empty system", {"role": "system", "content": ""}, user("Is it?"), said("Yes.")),
    _case("white space", user("\tq\u00a0\r\n"), said("\u00a0\tif x:\r\n\t\t1\u2003")),
    _case("right to left", user("\u200fשלום"), said("مرحبا\u200e e\u0301 ﬁ Ⅷ ok")),
    _case("markup", user("{{ x }} <b> assistant"), said("{% if %} <answer>4</answer> user")),
    _case("think, unclosed", user("Is 7?"), said("<think>\nhm hm")),
    _case("two questions", user("One."), user("Two."), said("Both seen.")),
    _case("two answers", user("One."), said("First half"), said("Second half.")),
    _case("assistant first", said("Welcome."), user("Hi."), said("Good day.")),
    _case("long", user("go " * 300), said("word and " * 800 + "end.")),
    _case("two rounds", *_WEATHER, called(OTHER), result("late"), said("Sunny and late."),
          tools=True),
    _case("nested arguments", user("Weather?"),
          called({"name": "weather", "arguments": {"a": [1, 2.5, None], "s": '<x> "q" é'}}),
          tools=True),
    _case("tools, then on", SYSTEM, *_WEATHER, said("It is sunny there."), user("And now?"),
          said("Still so."), tools=True),
]  # fmt: skip


def named_special(template: str) -> list[str]:
    """The special tokens that a template names, and the usual ones."""
    found = {match.group() for match in _SPECIAL.finditer(template)} - set(_PLAIN)
    bracketed = {token for token in found if re.fullmatch(r"\[/?(THE|YOUR|BEGIN|END)\w*\]", token)}
    return sorted((found - bracketed) | {"<s>", "</s>"})


def tokenizer_for(template: str) -> tuple[Any, list[str]]:
    """A byte-level tokenizer for a template, and its special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = named_special(template)
    eos = next((end for end in _ENDS if end in template), "</s>")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    core.decoder = decoders.ByteLevel()  # pyright: ignore
    words = ["Yes, it is. No, it is not. the weather there is sunny and so on"] * 3
    trainer = trainers.BpeTrainer(
        vocab_size=340, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator(words, trainer)
    core.add_special_tokens(sorted({*special, eos}))
    core.add_tokens([AddedToken(token, normalized=False) for token in _PLAIN])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=eos,
        bos_token="<s>" if eos == "</s>" else None,
        clean_up_tokenization_spaces=False,
    )
    return tokenizer, sorted({*special, eos})


def prepared(path: Path) -> tuple[Any, list[str]]:
    """A tokenizer with the template of a file, and its special tokens."""
    from steps.data.tokens.rendering import _prepared

    template = path.read_text("utf-8")
    tokenizer, special = tokenizer_for(template)
    tokenizer.chat_template = _prepared(template)
    return tokenizer, special


def made_of(tokenizer: Any, conversation: Conversation, every: bool, config: Any) -> Made:
    """Temper's tokens and mask of a conversation."""
    from steps.data.rows.reasons import MalformedRow
    from steps.data.rows.rows import ConversationRow
    from steps.data.tokens.tokenizing import tokenize_conversations

    row: Any = ConversationRow("1", tuple(conversation.messages), conversation.tools)  # pyright: ignore
    (found,) = tokenize_conversations(config[every], [row])
    if isinstance(found, MalformedRow):
        return Made(refused=found.reason, detail=found.detail)
    told = frozenset(name for name, value in vars(found.findings).items() if value)
    return Made(found.tokens.ids, found.tokens.mask, told)


def judged(path: Path, names: set[str]) -> Iterator[tuple[str, str, bool, Any, Made]]:
    """Every case of a template, with its result and the verdict."""
    from steps.data.tokens.config import TokenizeConfig, TrainOn
    from steps.data.tokens.tokenizing import tokenization

    tokenizer, special = prepared(path)
    oracle = Oracle(tokenizer, special)
    config = {
        every: tokenization(tokenizer, TokenizeConfig(10**6, 10**6, train_on=mode))
        for every, mode in ((False, TrainOn.answer), (True, TrainOn.all_turns))
    }
    ends: dict[str, Counter[str]] = defaultdict(Counter)
    for conversation in CASES:
        if names and conversation.name not in names:
            continue
        turns = [i for i, m in enumerate(conversation.messages) if m["role"] == "assistant"]
        for every in (False, True):
            made = made_of(tokenizer, conversation, every, config)
            verdict = oracle.judge(conversation, turns if every else turns[-1:], made)
            if verdict.kind == "plain" and not verdict.wrong and not made.refused:
                ends[conversation.name][verdict.end] += 1
                usual = ends["plain"].most_common(1)
                if usual and verdict.end != usual[0][0]:
                    verdict.wrong.append("turns end in different tokens")
            yield path.stem, conversation.name, every, verdict, made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="templates whose name holds this")
    parser.add_argument("--cases", nargs="*", default=[])
    parser.add_argument("--details", action="store_true")
    options = parser.parse_args()
    counts, kinds = Counter[str](), Counter[str]()
    by_template: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(options.folder.glob("*.jinja")):
        if options.only not in path.stem:
            continue
        try:
            for name, case, every, verdict, made in judged(path, set(options.cases)):
                outcome = _outcome(verdict, made)
                counts[outcome] += 1
                for wrong in verdict.wrong:
                    kinds[wrong] += 1
                    by_template[name][wrong] += 1
                if options.details and verdict.wrong:
                    mode = "all" if every else "last"
                    print(f"{name}: {case} ({mode}): {'; '.join(verdict.wrong)}")
        except Exception as error:
            print(f"{path.stem}: {type(error).__name__}: {error}", file=sys.stderr)
            counts["crashed"] += 1
            if options.details:
                raise
    print("\n| outcome | cases |\n|---|--:|")
    for outcome, count in counts.most_common():
        print(f"| {outcome} | {count} |")
    print("\n| what is wrong | cases | templates |\n|---|--:|--:|")
    for kind, count in kinds.most_common():
        templates = [name for name, found in by_template.items() if found[kind]]
        shown = ", ".join(sorted(templates)[:6])
        print(f"| {kind} | {count} | {len(templates)}: {shown} |")


def _outcome(verdict: Any, made: Made) -> str:
    if verdict.wrong:
        return "refused though traceable" if made.refused else "WRONG"
    if verdict.raises:
        return "refused: the template raises"
    if verdict.no_oracle:
        return "no oracle"
    if made.refused:
        return f"refused: {made.refused}"
    return "right, with a notice" if made.told else "right"


if __name__ == "__main__":
    main()
