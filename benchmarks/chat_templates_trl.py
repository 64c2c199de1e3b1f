"""Compare the tokens of pairs under real chat templates with those of TRL's DPOTrainer.

    PYTHONPATH=$PWD PYTHON_WITH_TRL -m benchmarks.chat_templates_trl FOLDER

Each conversation of `chat_templates` is the chosen side of a pair. TRL's own functions make its
tokens, as in `DPOTrainer._prepare_dataset`. TRL trains on everything after the prompt, to the end
of the text; in Temper, a pair ends with the end of its turn.
"""

import argparse
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from benchmarks.chat_templates import CASES, prepared

REJECTED = {"role": "assistant", "content": "Wrong, other words."}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(options.folder.glob("*.jinja")):
        for difference in differences(path):
            found[difference][path.stem] += 1
    print("| tokens | pairs | templates | for example |\n|---|--:|--:|---|")
    for difference, templates in sorted(found.items(), key=lambda item: -item[1].total()):
        names = ", ".join(name for name, _ in templates.most_common(4))
        print(f"| {difference} | {templates.total()} | {len(templates)} | {names} |")


def differences(path: Path) -> list[str]:
    """How each pair of a template compares."""
    from steps.data.rows.reasons import MalformedRow
    from steps.data.rows.rows import PreferenceRow
    from steps.data.tokens.config import TokenizeConfig
    from steps.data.tokens.pairs import tokenize_pairs
    from steps.data.tokens.tokenizing import tokenization

    tokenizer, _ = prepared(path)
    made = tokenization(tokenizer, TokenizeConfig(10**6, 10**6))
    compared = []
    for case in CASES:
        *prompt, answer = case.messages
        sides: Any = (tuple(prompt), (answer,), (REJECTED,), case.tools)
        (pair,) = tokenize_pairs(made, [PreferenceRow("1", *sides)])
        theirs = of_trl(tokenizer, prompt, answer, case.tools)
        if isinstance(pair, MalformedRow):
            compared.append(
                "neither makes any" if theirs is None else f"TRL's alone: {pair.reason}"
            )
        elif theirs is None:
            compared.append("here alone")
        else:
            compared.append(comparison(pair, *theirs))
    return compared


def of_trl(tokenizer: Any, prompt: Any, answer: Any, tools: Any) -> tuple[list, list] | None:
    """Prompt and chosen side as TRL's trainer tokenises them; None if it fails."""
    from trl.data_utils import (  # pyright: ignore[reportMissingImports]
        _tokenize,
        common_prefix_length,
    )

    tools = [dict(tool) for tool in tools] if tools else None
    try:
        asked = _tokenize(tokenizer, list(prompt), add_generation_prompt=True, tools=tools)
        sides = [
            _tokenize(tokenizer, [*prompt, side], tools=tools)["input_ids"]
            for side in (answer, REJECTED)
        ]
    except Exception:
        return None
    shared = min(common_prefix_length(asked["input_ids"], side) for side in sides)
    return asked["input_ids"][:shared], sides[0][shared:]


def comparison(pair: Any, prompt: list, chosen: list) -> str:
    ours = [*pair.prompt.ids, *pair.chosen.ids]
    theirs = [*prompt, *chosen]
    if ours != theirs[: len(ours)]:
        return "different text"
    tail = (
        "" if len(ours) == len(theirs) else ", and TRL trains on what follows the end of the turn"
    )
    if pair.prompt.ids == prompt:
        return f"the same{tail}"
    told = "prompt rewritten, told" if pair.findings.rewritten else "tokens merged, told"
    where = "later" if len(prompt) > len(pair.prompt.ids) else "earlier"
    return f"TRL's answer begins {where} ({told}){tail}"


if __name__ == "__main__":
    main()
