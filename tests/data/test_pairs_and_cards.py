"""Pairs from a checker's verdicts, and what is written for people: model cards and answers."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt
from step_output import Folder

from pipeline import Artifact, File, TemperError
from steps.build_pairs import PairConfig, build_pairs
from steps.checking.boxed import is_correct
from steps.data.load.config import LoadConfig
from steps.data.rows.parquet import read_rows, write_rows
from steps.data.rows.rows import Message, PreferenceRow, PromptRow, UnpairedRow
from steps.data.rows.tables import PAIRS, from_record, to_record
from steps.evaluation.answers import check_answers, compare_answers, judge, side_by_side
from steps.export.card import Ancestor, ModelCard, Sample, render_card
from steps.kinds import Preferences
from steps.load_preferences import load_preferences
from steps.load_prompts import load_prompts
from steps.prompts_of_pairs import prompts_of_pairs
from steps.score_completions import score_completions
from steps.unpair import unpair


def pairs_of(
    folder: Path, completions: list[tuple[str, list[str]]], config: PairConfig
) -> list[dict[str, Any]]:
    records = [
        {
            "row": f"q{i}",
            "prompt": [{"role": "user", "content": f"question {i}"}],
            "answer": answer,
            "completions": [rf"\boxed{{{text}}}" for text in texts],
            "finish": ["stop"] * len(texts),
        }
        for i, (answer, texts) in enumerate(completions)
    ]
    (folder / "completions.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    build_pairs.function(Folder(folder), Artifact(folder, "sample_completions", ""), config)
    pairs = [from_record(PreferenceRow, record) for record in read_rows(folder / "train")]
    return [
        {"row": p.row, "chosen": p.chosen[0]["content"], "rejected": p.rejected[0]["content"]}
        for p in pairs
    ]


MIXED = [("1", ["1", "2", "1", "3"]), ("5", ["5", "5"]), ("7", ["8", "7"]), ("9", ["0", "4"])]


def test_chosen_is_right_and_rejected_wrong_and_prompts_take_turns(tmp_path: Path) -> None:
    pairs = pairs_of(tmp_path, MIXED, PairConfig())
    assert [p["row"] for p in pairs] == ["q0/0", "q2/0", "q0/1"]  # all right or all wrong: no pair
    answers = {"q0": "1", "q2": "7"}
    for pair in pairs:
        answer = answers[pair["row"].split("/")[0]]
        assert is_correct(pair["chosen"], answer)
        assert not is_correct(pair["rejected"], answer)
    assert pairs[0]["rejected"] != pairs[2]["rejected"]


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"completions": [], "finish": []}, "row 'q' has no completions"),
        ({"answer": 1}, "row 'q' has the answer 1, which is no text; write it in quotes"),
    ],
)
def test_completions_that_cannot_be_judged_are_told_with_their_row(
    tmp_path: Path, record: dict[str, Any], told: str
) -> None:
    """The share of no completions was NaN, as was its interval."""
    whole = {"row": "q", "answer": "1", "completions": ["x"], "finish": ["stop"], "prompt": []}
    (tmp_path / "completions.jsonl").write_text(json.dumps({**whole, **record}) + "\n")
    sampled = Artifact(tmp_path, "sample_completions", "")
    for step in (score_completions, build_pairs):
        with pytest.raises(ValueError, match=told):
            step.function(Folder(tmp_path / "out"), sampled)
    (tmp_path / "completions.jsonl").write_text("")
    with pytest.raises(ValueError, match="there are no prompts with completions"):
        score_completions.function(Folder(tmp_path / "out"), sampled)


def test_shuffled_labels_swap_half_of_the_pairs_and_nothing_else(tmp_path: Path) -> None:
    many = [(str(i), [str(i), "x"]) for i in range(40)]
    plain = pairs_of(tmp_path, many, PairConfig())
    shuffled = pairs_of(tmp_path, many, PairConfig(shuffle_labels=True))
    swapped = [a["chosen"] == b["rejected"] for a, b in zip(plain, shuffled, strict=True)]
    assert sum(swapped) == 20
    assert [{a["chosen"], a["rejected"]} for a in plain] == [
        {b["chosen"], b["rejected"]} for b in shuffled
    ]


def test_a_pair_keeps_the_tools_and_template_arguments_of_its_prompt(tmp_path: Path) -> None:
    record = {
        "row": "q", "prompt": [{"role": "user", "content": "?"}], "answer": "1",
        "tools": [{"name": "add"}], "template_kwargs": {"enable_thinking": False},
        "completions": [r"\boxed{1}", r"\boxed{2}"], "finish": ["stop", "stop"],
    }  # fmt: skip
    (tmp_path / "completions.jsonl").write_text(json.dumps(record) + "\n")

    build_pairs.function(Folder(tmp_path), Artifact(tmp_path, "sample_completions", ""))

    (pair,) = (from_record(PreferenceRow, made) for made in read_rows(tmp_path / "train"))
    assert pair.tools == ({"name": "add"},)
    assert pair.template_kwargs == {"enable_thinking": False}


def test_pairs_taken_apart_keep_all_that_goes_with_a_response(tmp_path: Path) -> None:
    def said(text: str) -> tuple[Message]:
        return (Message(role="assistant", content=text),)

    pairs = [
        PreferenceRow(
            f"q{i}", (Message(role="user", content=f"{i}?"),), said(f"good {i}"), said(f"bad {i}"),
            tools=({"name": "add"},), template_kwargs={"k": i}, weight=0.5 + i,
        )
        for i in range(3)
    ]  # fmt: skip
    source = tmp_path / "train" / "pairs-00000.parquet"
    write_rows(source, PAIRS, map(to_record, pairs))
    out = Folder(tmp_path / "out")

    metrics = unpair.function(out, Preferences(tmp_path, "load_preferences", ""))

    assert metrics == {"train": 6}
    rows = [from_record(UnpairedRow, record) for record in read_rows(out.path / "train")]
    assert [row.row for row in rows] == [
        f"q{i}/{s}" for s in ("chosen", "rejected") for i in range(3)
    ]
    assert [row.label for row in rows] == [True] * 3 + [False] * 3
    assert [row.completion[0]["content"] for row in rows][::3] == ["good 0", "bad 0"]
    assert [row.weight for row in rows] == [0.5, 1.5, 2.5] * 2
    assert rows[-1].template_kwargs == {"k": 2}
    assert rows[-1].tools == ({"name": "add"},)


def test_the_prompts_of_pairs_are_asked_once_whatever_the_format_of_the_pairs(
    tmp_path: Path,
) -> None:
    """Such as rows without a column of prompts, which ``load_prompts`` does not read."""
    ask: Message = {"role": "user", "content": "Why?"}
    sides = [({"role": "assistant", "content": text},) for text in "abcd"]
    rows = [
        {"chosen": [ask, *sides[0]], "rejected": [ask, *sides[1]]},
        {"chosen": [ask, *sides[2]], "rejected": [ask, *sides[3]]},
        {side: f"\n\nHuman: How?\n\nAssistant: {side}" for side in ("chosen", "rejected")},
    ]
    for name, of in (("implicit", rows[:2]), ("hh", rows[2:])):
        data, loaded = tmp_path / f"{name}.jsonl", Folder(tmp_path / name)
        data.write_text("\n".join(map(json.dumps, of)))
        load_preferences.function(loaded, File(str(data)), None, LoadConfig())
        out = Folder(tmp_path / f"of {name}")
        metrics = prompts_of_pairs.function(out, Preferences(loaded.path, "load_preferences", ""))
        assert metrics == {"train": 1}
        (asked,) = (from_record(PromptRow, one) for one in read_rows(out.path / "train"))
        content = "Why?" if name == "implicit" else "How?"
        assert asked == PromptRow("file:1", ({"role": "user", "content": content},))
    with pytest.raises(TemperError, match=r"prompts_of_pairs.* rlhf with data.format=hh_rlhf"):
        load_prompts.function(Folder(tmp_path / "no"), File(str(tmp_path / "hh.jsonl")))
    with pytest.raises(TemperError, match="pass the whole artifact"):
        prompts_of_pairs.function(
            Folder(tmp_path / "none"), Preferences(out.path, "load_preferences", "")
        )


def test_a_completion_that_was_cut_is_in_no_pair_unless_it_is_asked_for(tmp_path: Path) -> None:
    """As a response it would be given an end of turn that the model never drew."""
    record = {
        "row": "q", "prompt": [{"role": "user", "content": "?"}], "answer": "1",
        "completions": [r"\boxed{1}", r"\boxed{2", r"\boxed{3}"],
        "finish": ["stop", "length", "stop"],
    }  # fmt: skip
    (tmp_path / "completions.jsonl").write_text(json.dumps(record) + "\n")
    sampled = Artifact(tmp_path, "sample_completions", "")

    def rejected(config: PairConfig) -> list[str]:
        metrics = build_pairs.function(Folder(tmp_path), sampled, config)
        assert (metrics or {})["completions_cut"] == 1
        pairs = [from_record(PreferenceRow, made) for made in read_rows(tmp_path / "train")]
        return [pair.rejected[0]["content"] for pair in pairs]

    assert rejected(PairConfig()) == [r"\boxed{3}"]
    assert rejected(PairConfig(keep_cut=True)) == [r"\boxed{2", r"\boxed{3}"]


def test_completions_that_are_all_right_or_all_wrong_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(TemperError, match=r"none of 2 prompts has both .* higher temperature"):
        pairs_of(tmp_path, [("1", ["1", "1"]), ("2", ["3"])], PairConfig())


HOSTILE = "a | b\n<script>x</script> `code` **bold** [link](http://x) \x1b[31mred"


def test_a_card_shows_names_as_text_whatever_they_hold() -> None:
    hostile = f"{HOSTILE} ![i](javascript:x) `"
    card = ModelCard(hostile, hostile, hostile, license=hostile)
    text = render_card(
        card,
        {hostile: 1.0},
        lineage=[Ancestor(hostile, hostile, hostile)],
        samples=[Sample(f"{hostile}\n```\n", hostile, hostile)],
    )
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front)["license"] == hostile
    parser = MarkdownIt("commonmark").enable("table")
    shown = parser.parse(body)
    inline = [part for token in shown for part in token.children or ()]
    assert {part.type for part in inline} <= {"text", "code_inline", "text_special"}
    assert not [token for token in shown if token.type == "html_block"]
    assert "\x1b" not in body


def test_answers_are_compared_by_the_prompts_on_which_a_check_changes() -> None:
    def answers(texts: str) -> list[dict[str, Any]]:
        return [{"row": str(i), "prompt": f"p{i}", "answer": t} for i, t in enumerate(texts)]

    checks = {"is a": "^a$"}
    before, after = judge(answers("bbbbbba"), checks), judge(answers("aaaaaab"), checks)
    assert [answer["checks"]["is a"] for answer in after] == [True] * 6 + [False]
    found = compare_answers(before, after)
    assert found["gain/answers/is a"]["value"] == pytest.approx(5 / 7)
    assert found["gain/answers/is a/p"] == pytest.approx(2 * (1 + 7) / 2**7)  # 6 gained, 1 lost
    assert "| p0 | b | a | 0 → 1 of 1 |" in side_by_side(before, after)
    with pytest.raises(ValueError, match="answered other prompts"):
        compare_answers(before, after[1:])


def test_checks_are_shares_of_the_answers_with_intervals() -> None:
    answers = [{"row": str(i), "prompt": "p", "answer": text} for i, text in enumerate("aab")]
    found = check_answers(judge(answers, {"is a": "^a$"}))
    assert found["answers/is a"] == pytest.approx(
        {"value": 2 / 3, "low": 0.2077, "high": 0.9385}, abs=1e-4
    )
    assert found["answers"] == 3
    assert check_answers(judge([], {"is a": "^a$"})) == {}
