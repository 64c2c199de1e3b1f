"""The shapes of well-known data sets: rows written here, in all columns that the data sets have.

Each loads without a setting, or the error names the setting with which it loads. A file of
JSON Lines and the Parquet file that `datasets` writes of the same rows give the same rows.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from steps.data.formats.choice import FormatChoice, choose_format
from steps.data.load.shards import Reader, source_of
from steps.data.rows.rows import ConversationRow, PreferenceRow, PromptRow, UnpairedRow

CHAT, PAIR, PROMPT, UNPAIRED = ConversationRow, PreferenceRow, PromptRow, UnpairedRow

USER = {"role": "user", "content": "q"}
GOOD = {"role": "assistant", "content": "good"}
BAD = {"role": "assistant", "content": "bad"}
CONTENT_FIRST = [{"content": turn["content"], "role": turn["role"]} for turn in (USER, GOOD)]
SHAREGPT = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "good"}]
HERMES = (
    "You are a function calling AI model. Signatures are in <tools></tools>. <tools> [] </tools>"
)
TOOL = {"type": "function", "function": {"name": "warm", "parameters": {"properties": {}}}}
CALL = '<tool_call>\n{"name": "warm", "arguments": {"city": "Oslo"}}\n</tool_call>'
XLAM_TOOL = {
    "name": "warm",
    "description": "d",
    "parameters": {"city": {"description": "c", "type": "str", "default": "Oslo"}},
}
GLAIVE = (
    'USER: q\n\n\nASSISTANT: <functioncall> {"name": "f", "arguments": \'{}\'} <|endoftext|>'
    '\n\n\nFUNCTION RESPONSE: {"a": 1}\n\n\nASSISTANT: good <|endoftext|>\n\n\n'
)
OASST = {
    "parent_id": None, "user_id": "u", "created_date": "2023-02-05T14:23:50", "lang": "en",
    "review_count": 3, "review_result": True, "deleted": False, "rank": None, "synthetic": False,
    "model_name": None, "detoxify": {"toxicity": 0.1}, "tree_state": "ready_for_export",
    "emojis": {"name": ["+1"], "count": [2]}, "labels": {"name": ["spam"], "value": [0.0],
    "count": [3]}, "message_tree_id": "m",
}  # fmt: skip
TREE = {
    "message_tree_id": "m", "tree_state": "ready_for_export",
    "prompt": {"message_id": "m", "text": "q", "role": "prompter", "lang": "en", "replies": [
        {"message_id": "a", "text": "bad", "role": "assistant", "rank": 1, "replies": []},
        {"message_id": "b", "text": "good", "role": "assistant", "rank": 0, "replies": []}]},
}  # fmt: skip
SAFE = {
    "prompt": "q", "response_0": "bad", "response_1": "good", "prompt_source": "s",
    "response_0_source": "a", "response_1_source": "b", "is_response_0_safe": True,
    "is_response_1_safe": False, "response_0_harm_category": {"Privacy": False},
    "response_1_harm_category": {"Privacy": True}, "response_0_severity_level": 0,
    "response_1_severity_level": 1, "better_response_id": 1, "safer_response_id": 0,
    "response_0_sha256": "0", "response_1_sha256": "1",
}  # fmt: skip

SHAPES: dict[str, tuple[type, Sequence[dict[str, Any]], str]] = {
    "GSM8K main": (
        CHAT, [{"question": "q", "answer": "1 + 1 = <<1+1=2>>2\n#### good"}],
        "user: q / assistant: 1 + 1 = <<1+1=2>>2\n#### good"),
    "GSM8K socratic, prompts": (
        PROMPT, [{"question": "q", "answer": "How many? ** 1 + 1 = <<1+1=2>>2\n#### good"}],
        "user: q = good"),
    "UltraFeedback binarized": (
        PAIR, [{"prompt": "q", "prompt_id": "p", "chosen": [USER, GOOD], "rejected": [USER, BAD],
                "messages": [USER, GOOD], "score_chosen": 8.5, "score_rejected": 3.0}],
        "user: q > assistant: good > assistant: bad"),
    "UltraFeedback": (
        PAIR, [{"source": "evol", "instruction": "q", "models": ["a", "b"], "completions": [
            {"annotations": {"helpfulness": {"Rating": "2", "Rationale": "r"}}, "critique": "c",
             "custom_system_prompt": "p", "fine-grained_score": 2.0, "model": "a",
             "overall_score": 2.0, "principle": "p", "response": "bad"},
            {"annotations": {"helpfulness": {"Rating": "5", "Rationale": "r"}}, "critique": "c",
             "custom_system_prompt": "p", "fine-grained_score": 5.0, "model": "b",
             "overall_score": 9.0, "principle": "p", "response": "good"}],
            "correct_answers": ["None"], "incorrect_answers": ["None"]}],
        "user: q > assistant: good > assistant: bad"),
    "HH-RLHF": (
        PAIR, [{"chosen": "\n\nHuman: q\n\nAssistant: good",
                "rejected": "\n\nHuman: q\n\nAssistant: bad"}],
        "user: q > assistant: good > assistant: bad"),
    "OASST2, messages": (
        CHAT, [{"message_id": "m", "text": "q", "role": "prompter", **OASST},
               {"message_id": "a", "text": "good", "role": "assistant", **OASST,
                "parent_id": "m", "rank": 0}],
        "!trees.jsonl.gz"),
    "OASST2, trees": (CHAT, [TREE], "user: q / assistant: good"),
    "OASST2, trees as pairs": (PAIR, [TREE], "user: q > assistant: good > assistant: bad"),
    "Tulu 3 SFT mixture": (
        CHAT, [{"id": "i", "messages": CONTENT_FIRST, "source": "s"}], "user: q / assistant: good"),
    "Tulu 3 preference mixture": (
        PAIR, [{"id": "i", "prompt": "q", "chosen": [USER, GOOD], "rejected": [USER, BAD],
                "chosen_rating": 4.0, "rejected_rating": 1.0, "chosen_model": "a",
                "rejected_model": "b", "source": "s"}],
        "user: q > assistant: good > assistant: bad"),
    "Tulu 3 RLVR": (
        PROMPT, [{"messages": [USER], "ground_truth": "good", "dataset": "gsm8k"}],
        "user: q = good"),
    "hermes function calling": (
        CHAT, [{"id": "i", "conversations": [
            {"from": "system", "value": HERMES}, {"from": "human", "value": "q"},
            {"from": "gpt", "value": CALL}, {"from": "tool", "value": "<tool_response>\n4"},
            {"from": "gpt", "value": "good"}],
            "tools": json.dumps([TOOL]), "category": "c", "subcategory": "s", "task": "t"}],
        f"system: {HERMES} / user: q / assistant: {CALL} / tool: <tool_response>\n4 "
        "/ assistant: good + 1 tool"),
    "glaive function calling v2": (
        CHAT, [{"system": 'SYSTEM: Functions are -\n{"name": "f"}\n', "chat": GLAIVE}],
        'system: Functions are -\n{"name": "f"} / user: q / assistant: <functioncall> {"name": '
        "\"f\", \"arguments\": '{}'} / tool: {\"a\": 1} / assistant: good"),
    "xLAM function calling": (
        CHAT, [{"id": 0, "query": "q", "tools": json.dumps([XLAM_TOOL]),
                "answers": json.dumps([{"name": "warm", "arguments": {"city": "Oslo"}}])}],
        "user: q / assistant: [warm] + 1 tool"),
    "OpenThoughts": (
        CHAT, [{"system": "Think.", "conversations": [
            {"from": "user", "value": "q"},
            {"from": "assistant", "value": "<|begin_of_thought|>t<|end_of_thought|>good"}]}],
        "system: Think. / user: q / assistant: <|begin_of_thought|>t<|end_of_thought|>good"),
    "OpenThoughts 3": (
        CHAT, [{"difficulty": 7, "source": "s", "domain": "math", "conversations": SHAREGPT},
               {"difficulty": None, "source": "s", "domain": "code", "conversations": SHAREGPT}],
        "user: q / assistant: good"),
    "MATH": (
        PROMPT, [{"problem": "q", "level": "Level 3", "type": "Algebra",
                  "solution": "So $x = \\boxed{good}$."}],
        "user: q = good"),
    "MATH-500": (
        PROMPT, [{"problem": "q", "solution": "So $x = \\boxed{good}$.", "answer": "good",
                  "subject": "Algebra", "level": 3, "unique_id": "test/1"}],
        "user: q = good"),
    "MATH, to imitate": (
        CHAT, [{"problem": "q", "level": "Level 3", "type": "Algebra", "solution": "good"}],
        "user: q / assistant: good"),
    "HelpSteer 3": (
        PAIR, [{"domain": "general", "language": "english", "context": [USER], "response1": "bad",
                "response2": "good", "overall_preference": 2, "individual_preference": [
                    {"score": 2, "reasoning": "r", "feedback1": "f", "feedback2": "g"}]}],
        "user: q > assistant: good > assistant: bad"),
    "Capybara": (
        CHAT, [{"source": "s", "conversation": [{"input": "q", "output": "good"}]}],
        "user: q / assistant: good"),
    "Capybara preferences": (
        PAIR, [{"source": "s", "conversation": [{"input": "q", "output": "good"}],
                "original_response": "good", "generation_prompt": ["p"],
                "raw_generation_responses": ["bad"], "prompt": "q", "chosen": CONTENT_FIRST,
                "rejected": [USER, BAD], "chosen-rating": 5.0, "rejected-rating": 2.0,
                "chosen-model": "a", "rejected-model": "b"}],
        "user: q > assistant: good > assistant: bad"),
    "UltraChat 200k": (
        CHAT, [{"prompt": "q", "prompt_id": "p", "messages": CONTENT_FIRST}],
        "user: q / assistant: good"),
    "Nectar": (
        PAIR, [{"prompt": "\n\nHuman: q\n\nAssistant: ", "answers": [
            {"answer": "bad", "model": "a", "rank": 2.0},
            {"answer": "good", "model": "b", "rank": 1.0}],
            "turns": 1, "num_responses": 2, "source": ["s"], "good_natured": True}],
        "user: q > assistant: good > assistant: bad"),
    "PKU-SafeRLHF": (PAIR, [SAFE], "user: q > assistant: good > assistant: bad"),
    "ShareGPT": (CHAT, [{"id": "i_0", "conversations": SHAREGPT}], "user: q / assistant: good"),
    "orca-dpo-pairs": (
        PAIR, [{"system": "s", "question": "q", "chosen": "good", "rejected": "bad"}],
        "system: s / user: q > assistant: good > assistant: bad"),
    "KTO mix 14k": (
        UNPAIRED, [{"dataset": "d", "prompt": [USER], "completion": [GOOD], "label": True},
                   {"dataset": "d", "prompt": [USER], "completion": [BAD], "label": False}],
        "user: q > assistant: good is True"),
    "NuminaMath-CoT": (
        CHAT, [{"source": "s", "problem": "q", "solution": "good", "messages": CONTENT_FIRST}],
        "user: q / assistant: good"),
    "NuminaMath 1.5": (
        PROMPT, [{"problem": "q", "solution": "So it is.", "answer": "good", "source": "s",
                  "problem_type": "Algebra", "question_type": "math-word-problem",
                  "problem_is_valid": "Yes", "solution_is_valid": "Yes", "synthetic": False}],
        "user: q = good"),
    "SlimOrca": (
        CHAT, [{"conversations": [{"from": "system", "value": "s", "weight": None},
                                  {"from": "human", "value": "q", "weight": 0.0},
                                  {"from": "gpt", "value": "good", "weight": 1.0}]}],
        "system: s / user: q / assistant: good (trained)"),
    "Skywork reward preferences": (
        PAIR, [{"chosen": CONTENT_FIRST, "rejected": [USER, BAD], "source": "s"}],
        "user: q > assistant: good > assistant: bad"),
    "When2Call": (
        PAIR, [{"uuid": "u", "messages": [USER], "tools": [json.dumps(XLAM_TOOL)],
                "chosen_response": GOOD, "rejected_response": BAD}],
        "user: q > assistant: good > assistant: bad + 1 tool"),
}  # fmt: skip


def shown(row: dict[str, Any]) -> str:
    """A row in one line."""

    def turns(messages: Sequence[dict[str, Any]]) -> str:
        return " / ".join(
            f"{m['role']}: {m['content'] or calls(m)}{' (trained)' * bool(m.get('trained'))}"
            for m in messages
        )

    def calls(message: dict[str, Any]) -> str:
        return f"[{', '.join(call['function']['name'] for call in message['tool_calls'])}]"

    sides = ("messages", "prompt", "chosen", "rejected", "completion")
    said = " > ".join(turns(row[side]) for side in sides if side in row)
    said += f" = {row['answer']}" if "answer" in row else ""
    said += f" is {row['label']}" if "label" in row else ""
    return said + (f" + {len(row['tools'])} tool" if row["tools"] else "")


def rows_of(path: Path, makes: type, choice: FormatChoice) -> list[dict[str, Any]]:
    read = [item[1] for _, item in iter(Reader(source_of(str(path))).next, None)]
    records: list[Any] = read
    chosen, rows = choose_format(choice, records, makes, "here"), []
    for record in records:
        made = chosen.parse(record, "1")
        rows += map(asdict, made if isinstance(made, list) else [made])  # pyright: ignore
    return rows


@pytest.mark.parametrize("name", SHAPES)
def test_a_well_known_data_set_loads_or_the_error_names_the_setting(
    name: str, tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets")
    makes, records, expected = SHAPES[name]
    lines, table = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    datasets.Dataset.from_list(records, on_mixed_types="use_json").to_parquet(str(table))
    choice = FormatChoice()
    if expected.startswith("!"):
        with pytest.raises(ValueError, match=re.escape(expected[1:])):
            rows_of(lines, makes, choice)
        return
    try:
        rows = rows_of(lines, makes, choice)
    except ValueError as error:
        named = re.search(r"data\.format=(\w+) 'data\.fields=\{(.*?)\}'", str(error))
        if named is None:
            raise
        choice = FormatChoice(named[1], dict(pair.split(": ") for pair in named[2].split(", ")))
        rows = rows_of(lines, makes, choice)
    assert shown(rows[0]) == expected
    assert rows_of(table, makes, choice) == rows
