"""The task whose answers can be checked: its problems, its flawed annotator, its tokenizer."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_output import Folder
from transformers import PreTrainedTokenizerFast

from steps.data.rows.arithmetic import (
    OPERANDS,
    Problem,
    boxed,
    build_tokenizer,
    demonstrations,
    sample_problems,
)
from steps.data.rows.jsonl import read_json_lines, write_json_lines
from steps.data.rows.parquet import read_rows
from steps.data.rows.rows import ConversationRow, PromptRow
from steps.data.rows.sums import Sum
from steps.data.rows.tables import from_record
from steps.data.tokens.tokenizing import TokenizedConversation, tokenization, tokenize_conversations
from steps.kinds import Completions
from steps.make_sums import make_sums
from steps.score_completions import score_completions

PROBLEMS = st.builds(Problem, st.sampled_from(OPERANDS), st.sampled_from(OPERANDS))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


def test_a_problem_asks_for_a_sum_and_knows_it() -> None:
    problem = Problem(27, 35)

    question = {"role": "user", "content": "What is 27 + 35?"}
    assert problem.prompt == PromptRow("27+35", (question,), "62")  # pyright: ignore
    assert problem.answer == "62"
    assert boxed(problem.answer) == r"\boxed{62}"


@given(PROBLEMS)
def test_forgetting_a_carry_costs_ten_exactly_where_there_is_one(problem: Problem) -> None:
    carries = problem.left % 10 + problem.right % 10 >= 10

    assert int(problem.answer) - int(problem.answer_without_carry) == (10 if carries else 0)


def test_no_problem_is_both_trained_on_and_held_out() -> None:
    train, test = sample_problems(seed=0)

    assert (len(train), len(test)) == (1100, 500)
    assert len({problem.prompt.prompt[0]["content"] for problem in train + test}) == 1600


def test_the_problems_of_a_seed_are_those_earlier_results_were_made_with() -> None:
    train, test = sample_problems(seed=0)

    assert [problem.prompt.row for problem in train[:3]] == ["49+21", "48+23", "24+32"]
    assert [problem.prompt.row for problem in test[:3]] == ["43+33", "23+41", "27+48"]


def test_half_of_the_demonstrations_forget_the_carry() -> None:
    problems, _ = sample_problems(seed=0)
    carrying = [problem for problem in problems if problem.answer != problem.answer_without_carry]

    shown = demonstrations(carrying, seed=0)

    outcomes = Counter(
        demonstration.messages[-1]["content"] == boxed(problem.answer)
        for demonstration, problem in zip(shown, carrying, strict=True)
    )
    assert outcomes[False] == len(carrying) // 2
    assert demonstrations(carrying, seed=0) == shown
    assert demonstrations(carrying, seed=1) != shown


@given(PROBLEMS)
def test_every_text_of_the_task_survives_the_tokenizer(problem: Problem) -> None:
    tokenizer = build_tokenizer()
    for text in (problem.prompt.prompt[0]["content"], boxed(problem.answer)):
        ids = tokenizer(text).input_ids
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == text


def test_the_template_marks_as_generated_what_is_trained_on(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    (shown,) = demonstrations([Problem(27, 35)], seed=0)
    marked: Any = tokenizer.apply_chat_template(
        list(shown.messages),  # pyright: ignore
        return_dict=True,
        return_assistant_tokens_mask=True,
    )

    (made,) = tokenize_conversations(tokenization(tokenizer), [shown])

    assert isinstance(made, TokenizedConversation)
    assert made.tokens.ids == marked["input_ids"]
    assert list(map(int, made.tokens.mask)) == marked["assistant_masks"]
    assert made.tokens.ids[-1] == tokenizer.eos_token_id


def test_the_demonstrations_of_a_long_sum_call_a_calculator_until_patience_ends(
    tmp_path: Path,
) -> None:
    """27 + 35 + 18: every call is right, and what is added in the head has lost its carries."""
    question = Sum((27, 35, 18))
    assert question.prompt.answer == "80"
    patient, hasty = (question.demonstration(calls).messages for calls in (2, 1))
    assert [m["content"] for m in patient] == [
        "What is 27 + 35 + 18?", "27 + 35", "62", "62 + 18", "80", boxed("80"),
    ]  # fmt: skip
    assert [m["content"] for m in hasty] == [
        "What is 27 + 35 + 18?", "27 + 35", "62", boxed("70"),
    ]  # fmt: skip

    out = Folder(tmp_path / "sums")
    counts = make_sums.function(out, train=200, test=40, seed=3)
    shown = [
        from_record(ConversationRow, record)
        for record in read_rows(out.path / "sft/conversations-00000.parquet")
    ]
    asked, held_out = (
        [from_record(PromptRow, r) for r in read_rows(out.path / split / "prompts-00000.parquet")]
        for split in ("train", "test")
    )
    assert (len(asked), len(held_out)) == (200, 40)
    assert not {row.row for row in asked} & {row.row for row in held_out}
    assert [row.row for row in shown] == [row.row for row in asked]
    right = [
        row.messages[-1]["content"] == boxed(str(prompt.answer))
        for row, prompt in zip(shown, asked, strict=True)
    ]
    assert counts == {"train": 200, "test": 40, "demonstrations_right": sum(right)}
    called = [sum(m["role"] == "user" for m in row.messages) - 1 for row in shown]
    needed = [prompt.row.count("+") for prompt in asked]
    assert all(ok for ok, n, most in zip(right, called, needed, strict=True) if n == most)
    assert all(1 <= n <= most for n, most in zip(called, needed, strict=True))
    assert not all(right)
    lengths = Counter(row.row.count("+") for row in (*asked, *held_out))
    assert lengths == {1: 60, 2: 60, 3: 60, 4: 60}


def test_completions_are_right_well_formed_or_cut_and_listed_one_by_one(tmp_path: Path) -> None:
    completions = Folder(tmp_path / "completions")
    rows = [
        {"row": "1+1", "answer": "2", "completions": [boxed("2"), boxed("3"), "2"],
         "finish": ["stop", "stop", "length"]},
        {"row": "1+2", "answer": "3", "completions": [boxed("3")] * 3, "finish": ["stop"] * 3},
    ]  # fmt: skip
    write_json_lines(completions.path / "completions.jsonl", rows)
    out = Folder(tmp_path / "scores")
    metrics: Any = score_completions.function(out, Completions(completions.path, "", ""))
    assert metrics["exact_match"]["value"] == pytest.approx(4 / 6)
    assert metrics["well_formed"]["value"] == pytest.approx(5 / 6)
    assert (metrics["completions"], metrics["cut"]) == (6, 1)
    scores = read_json_lines(out.path / "scores.jsonl")
    assert [score["right"] for score in scores] == [True, False, False, True, True, True]
    assert [score["row"] for score in scores] == ["1+1"] * 3 + ["1+2"] * 3
    assert scores[2] == {
        "row": "1+1",
        "answer": "2",
        "completion": "2",
        "right": False,
        "cut": True,
    }
