"""Pairs from a checker's verdicts, and what is written for people: model cards and answers."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline import Artifact, TemperError
from steps.build_pairs import PairConfig, build_pairs
from steps.data.parquet import read_rows
from steps.data.rows import PreferenceRow
from steps.data.tables import from_record
from steps.evaluation.answers import check_answers, side_by_side
from steps.evaluation.checkers import is_correct
from steps.export.card import Ancestor, ModelCard, render_card
from steps.training.config import PreferenceConfig, TrainConfig
from steps.training.losses.ipo import Ipo


class Folder:
    """A step function's ``out``, for calling one directly."""

    def __init__(self, path: Path):
        self.path = self.scratch = path

    def progress(self, done: float, total: float | None, metrics: Any = None) -> None:
        pass


def pairs_of(
    folder: Path, completions: list[tuple[str, list[str]]], config: PairConfig
) -> list[dict[str, Any]]:
    records = [
        {
            "row": f"q{i}",
            "prompt": [{"role": "user", "content": f"question {i}"}],
            "answer": answer,
            "completions": [rf"\boxed{{{text}}}" for text in texts],
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


def test_no_more_pairs_than_asked_for(tmp_path: Path) -> None:
    pairs = pairs_of(tmp_path, MIXED, PairConfig(max_pairs=2))
    assert [p["row"] for p in pairs] == ["q0/0", "q2/0"]


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
        "completions": [r"\boxed{1}", r"\boxed{2}"],
    }  # fmt: skip
    (tmp_path / "completions.jsonl").write_text(json.dumps(record) + "\n")

    build_pairs.function(Folder(tmp_path), Artifact(tmp_path, "sample_completions", ""))

    (pair,) = (from_record(PreferenceRow, made) for made in read_rows(tmp_path / "train"))
    assert pair.tools == ({"name": "add"},)
    assert pair.template_kwargs == {"enable_thinking": False}


def test_completions_that_are_all_right_or_all_wrong_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(TemperError, match=r"none of 2 prompts has both .* higher temperature"):
        pairs_of(tmp_path, [("1", ["1", "1"]), ("2", ["3"])], PairConfig())


def test_a_card_names_data_results_and_only_settings_that_bear_on_them() -> None:
    card = ModelCard(
        "Title", "base/model", "pairs.jsonl", TrainConfig(), PreferenceConfig(loss=Ipo(0.25))
    )
    text = render_card(card, {"eval_rewards/margins": {"value": 1.5, "low": 1.0, "high": 2.0}})
    for part in (
        "base/model",
        "pairs.jsonl",
        "dpo.loss | ipo",
        "dpo.loss.beta | 0.25",
        "1.5 | 1 to 2",
    ):
        assert part in text
    assert "checkpoint_every" not in text


def test_a_card_says_how_the_model_was_before_what_it_is_made_from_and_its_licence() -> None:
    card = ModelCard("Title", "base/model", "pairs.jsonl", license="apache-2.0")
    after = {"eval_loss": 0.25, "eval_logps/accuracies": {"value": 0.9, "low": 0.8, "high": 1.0}}
    before = {"eval_loss": 0.75, "eval_logps/accuracies": {"value": 0.5, "low": 0.4, "high": 0.6}}
    text = render_card(card, after, before, [Ancestor("base model", "import_model", "abc123")])
    for part in (
        "| eval_loss | 0.75 | 0.25 |",
        "| eval_logps/accuracies | 0.5 | 0.9 | 0.8 to 1 |",
        "| base model | import_model | `abc123` |",
        'license: "apache-2.0"\n',
    ):
        assert part in text


HOSTILE = "a | b\n<script>x</script> `code` **bold** [link](http://x) \x1b[31mred"


def test_answers_are_shown_as_text_whatever_they_hold(console: Console) -> None:
    from rich.markdown import Markdown

    answer = {"row": "1", "prompt": HOSTILE, "answer": HOSTILE}
    text = side_by_side([answer], [answer])
    rows = [line for line in text.splitlines() if line.startswith("| a")]
    assert len(rows) == 1  # the line break and the bar stay inside their cell
    console.print(Markdown(text))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in shown
    assert "<script>" in shown


def test_checks_are_shares_of_the_answers_with_intervals() -> None:
    answers = [{"row": str(i), "prompt": "p", "answer": text} for i, text in enumerate("aab")]
    found = check_answers(answers, {"is a": "^a$"})
    assert found["answers/is a"] == pytest.approx(
        {"value": 2 / 3, "low": 0.2077, "high": 0.9385}, abs=1e-4
    )
    assert found["answers"] == 3
    assert check_answers([], {"is a": "^a$"}) == {}
