"""The task whose answers can be checked: its problems, its flawed annotator, its tokenizer."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from steps.data.rows.arithmetic import (
    OPERANDS,
    Problem,
    boxed,
    build_tokenizer,
    demonstrations,
    sample_problems,
    write_tokenizer,
)
from steps.data.rows.rows import PromptRow
from steps.data.tokens.rendering import load_tokenizer
from steps.data.tokens.tokenizing import TokenizedConversation, tokenization, tokenize_conversations

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


def test_who_forgets_the_carry_is_ten_short_and_otherwise_right() -> None:
    assert Problem(27, 35).answer_without_carry == "52"
    assert Problem(49, 49).answer_without_carry == "88"
    assert Problem(24, 35).answer_without_carry == "59" == Problem(24, 35).answer


@given(PROBLEMS)
def test_forgetting_a_carry_costs_ten_exactly_where_there_is_one(problem: Problem) -> None:
    carries = problem.left % 10 + problem.right % 10 >= 10

    assert int(problem.answer) - int(problem.answer_without_carry) == (10 if carries else 0)


def test_no_problem_is_both_trained_on_and_held_out() -> None:
    train, test = sample_problems(seed=0)

    assert (len(train), len(test)) == (1100, 500)
    assert len({problem.prompt.prompt[0]["content"] for problem in train + test}) == 1600


def test_a_seed_fixes_the_problems_and_another_changes_them() -> None:
    assert sample_problems(seed=3) == sample_problems(seed=3)
    assert sample_problems(seed=3) != sample_problems(seed=4)
    assert sample_problems(seed=3, train=10)[0] == sample_problems(seed=3)[0][:10]


def test_the_problems_of_a_seed_are_those_earlier_results_were_made_with() -> None:
    train, test = sample_problems(seed=0)

    assert [problem.prompt.row for problem in train[:3]] == ["49+21", "48+23", "24+32"]
    assert [problem.prompt.row for problem in test[:3]] == ["43+33", "23+41", "27+48"]


def test_more_problems_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match="there are 1600"):
        sample_problems(seed=0, train=1500, test=101)


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


def test_a_demonstration_is_the_question_and_one_answer() -> None:
    problem = Problem(27, 35)

    (shown,) = demonstrations([problem], seed=0)

    assert shown.row == "27+35"
    assert shown.messages[:-1] == problem.prompt.prompt
    assert shown.messages[-1] == {"role": "assistant", "content": r"\boxed{62}"}


@given(PROBLEMS)
def test_every_text_of_the_task_survives_the_tokenizer(problem: Problem) -> None:
    tokenizer = build_tokenizer()
    for text in (problem.prompt.prompt[0]["content"], boxed(problem.answer)):
        ids = tokenizer(text).input_ids
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == text


def test_numbers_are_read_digit_by_digit(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.tokenize("What is 27 + 35?") == [
        *("What", " is", " ", "2", "7", " +", " ", "3", "5", "?")
    ]
    assert tokenizer.tokenize(r"\boxed{62}") == [r"\boxed{", "6", "2", "}"]


def test_text_outside_the_task_is_unknown_not_an_error(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.tokenize("Why?\n") == ["<|unk|>", "?", "<|unk|>"]


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


def test_the_tokenizer_is_saved_and_loaded_as_any_models_is(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "one")
    write_tokenizer(tmp_path / "two")

    loaded = load_tokenizer(tmp_path / "one")

    assert loaded.decode(loaded(r"What is 27 + 35?\boxed{62}").input_ids) == (
        r"What is 27 + 35?\boxed{62}"
    )
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
