"""Held-out prompts: the same ones tomorrow, on any machine, with more rows or fewer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steps.data.load.splits import in_test_split
from steps.data.rows.rows import Message

MESSAGES = st.builds(
    Message, role=st.sampled_from(["system", "user", "assistant"]), content=st.text(max_size=20)
)
PROMPTS = st.lists(MESSAGES, min_size=1, max_size=4)


def questions(count: int) -> list[tuple[Message, ...]]:
    return [({"role": "user", "content": f"Question {number}?"},) for number in range(count)]


def test_the_assignment_is_the_one_earlier_results_were_made_with() -> None:
    held_out = [n for n, prompt in enumerate(questions(60)) if in_test_split(prompt, 0.1)]

    assert held_out == [8, 12, 14, 39, 40, 43, 48, 55]


@given(PROMPTS, st.floats(0, 1))
def test_equal_prompts_land_together_however_they_are_held(
    prompt: list[Message], fraction: float
) -> None:
    reread: list[Message] = [
        {"content": message["content"], "role": message["role"]} for message in prompt
    ]

    assert in_test_split(prompt, fraction) == in_test_split(tuple(reread), fraction)


def test_where_one_message_ends_and_the_next_begins_matters() -> None:
    joined: list[tuple[Message, ...]] = [
        ({"role": "user", "content": f"{n} a b"},) for n in range(200)
    ]
    parted: list[tuple[Message, ...]] = [
        ({"role": "system", "content": f"{n} a"}, {"role": "user", "content": "b"})
        for n in range(200)
    ]

    assert [in_test_split(p, 0.5) for p in joined] != [in_test_split(p, 0.5) for p in parted]


@pytest.mark.parametrize("fraction", [-0.1, 1.5, float("nan")])
def test_a_fraction_that_is_none_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        in_test_split(questions(1)[0], fraction)
