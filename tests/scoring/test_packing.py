"""Packs: what a model is given to read, and which groups it is given together."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import VOCABULARY, pair_records

from steps.data.images.images_of_rows import ImageOfRow
from steps.scoring.examples import (
    Groups,
    TokenGroup,
    TokenResponse,
    as_whole,
    chosen_as_demonstration,
    facts_of,
    joined,
    read_demonstrations,
    read_pairs,
    read_unpaired,
)
from steps.scoring.packing import GroupSpan, Segment, make_pack, plan_packs


def group(prompt: tuple[int, ...], *responses: TokenResponse) -> TokenGroup:
    return TokenGroup("a row", "an id", prompt, responses)


def everything(*ids: int) -> TokenResponse:
    return TokenResponse(ids)


def filled(ids: list[int], tokens: int = 32) -> list[int]:
    return ids + ids[-1:] * (tokens - len(ids))


# --- rows on disk --------------------------------------------------------------------------------


def test_groups_on_disk_are_what_was_written_and_take_no_memory_of_their_tokens() -> None:
    masked = TokenResponse((4, 2**31 - 1, 6), (True, False, True))
    seen = (ImageOfRow(Path("folder"), "a picture"),)
    written = [
        replace(group((1, 2), masked, everything(7)), weight=1 / 3, label=False, images=seen),
        replace(group((), masked, everything(8, 9)), row="\ud800 ü", group_id="ü" * 30),
        as_whole(group((5,), masked, everything(3))),
    ]
    groups, more = Groups.of(written), Groups.of(reversed(written))
    assert list(groups) == written
    assert list(joined(groups[1:], more, [])) == [*written[1:], *written[::-1]]
    assert list(joined(groups, written)) == written * 2
    for name in ("group_id", "scored", "packed", "longest", "tokens", "images", "weight", "label"):
        assert (groups.facts[name] == facts_of(written)[name]).all(), name
    large = Groups.of(group((1,) * 5_000, everything(*range(5_000))) for _ in range(100))
    assert large.facts.nbytes / len(large) < 100


# --- one row of tokens ---------------------------------------------------------------------------


def test_a_prompt_is_read_once_and_a_last_token_never() -> None:
    pack = make_pack([group((1, 2, 3), everything(4, 5, 6), everything(7, 8))])
    assert pack.input_ids.tolist() == filled([1, 2, 3, 4, 5, 7])
    assert pack.position_ids.tolist() == [0, 1, 2, 3, 4, 3, *range(26)]
    assert pack.segments == (Segment(0, 5, 0, 0), Segment(5, 6, 0, 3), Segment(6, 32, 6, 6))
    assert pack.predictors.tolist() == [2, 3, 4, 2, 5]
    assert pack.targets.tolist() == [4, 5, 6, 7, 8]
    assert pack.num_scored.tolist() == [3, 2]


def test_a_group_attends_to_its_own_prompt() -> None:
    pair = group((1, 2), everything(3, 4), everything(5, 6))
    pack = make_pack([pair, pair])
    assert pack.segments[:4] == (
        Segment(0, 3, 0, 0),
        Segment(3, 4, 0, 2),
        Segment(4, 7, 4, 4),
        Segment(7, 8, 4, 6),
    )
    assert pack.groups == (GroupSpan(0, 4), GroupSpan(4, 8))
    assert pack.lengths.tolist() == [[2, 2], [2, 2]]


def test_what_follows_the_last_scored_token_is_not_read() -> None:
    response = TokenResponse((2, 3, 4, 5, 6), (False, True, False, False, False))
    pack = make_pack([group((1,), response)])
    assert pack.input_ids.tolist() == filled([1, 2])
    assert (pack.predictors.tolist(), pack.targets.tolist()) == ([1], [3])


def test_the_first_token_after_an_empty_prompt_is_read_and_not_scored() -> None:
    pack = make_pack([group((), everything(3, 4, 5), everything(6, 7))])
    assert pack.input_ids.tolist() == filled([3, 4, 6])
    assert pack.segments[:2] == (Segment(0, 2, 0, 0), Segment(2, 3, 0, 0))
    assert pack.predictors.tolist() == [0, 1, 2]
    assert pack.targets.tolist() == [4, 5, 7]
    assert pack.num_scored.tolist() == [2, 1]


def test_a_group_of_fewer_responses_than_others_has_lengths_of_0() -> None:
    groups = [group((1,), everything(2)), group((1,), everything(2, 3), everything(3))]
    assert make_pack(groups).lengths.tolist() == [[1, 0], [2, 1]]
    assert make_pack(groups[:1], responses=3).lengths.tolist() == [[1, 0, 0]]


def test_the_layout_for_variable_lengths_lists_every_segment_s_keys() -> None:
    pair = group((1, 2), everything(3, 4), everything(5, 6, 7))
    layout = make_pack([pair, pair]).varlen
    keys = [
        layout.key_rows[start:stop].tolist()
        for start, stop in torch.stack([layout.key_offsets[:-1], layout.key_offsets[1:]], 1)
    ]
    assert keys == [[0, 1, 2], [0, 1, 3, 4], [5, 6, 7], [5, 6, 8, 9], list(range(10, 32))]
    assert layout.query_offsets.tolist() == [0, 3, 5, 8, 10, 32]
    assert (layout.longest_query, layout.longest_key) == (22, 22)


# --- which go together ---------------------------------------------------------------------------


def test_what_is_longer_than_the_budget_stands_alone() -> None:
    assert plan_packs([3, 50, 3], budget=10) == [[0, 2], [1]]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 60))
def test_a_plan_has_every_example_once_within_the_budget(lengths: list[int], budget: int) -> None:
    plan = plan_packs(lengths, budget)
    assert sorted(index for pack in plan for index in pack) == list(range(len(lengths)))
    assert all(len(pack) == 1 or sum(lengths[i] for i in pack) <= budget for pack in plan)
    assert plan == sorted(map(sorted, plan))
    # No two of its packs could have been one.
    totals = sorted(sum(lengths[i] for i in pack) for pack in plan)
    assert len(plan) == 1 or totals[0] + totals[1] > budget


# --- examples ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "response"),
    [((1,), ()), ((), (2,)), ((), ())],
)
def test_a_response_without_a_scored_token_is_refused(
    prompt: tuple[int, ...], response: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="'a row': a response has no token that is scored"):
        group(prompt, TokenResponse(response))


def test_a_pair_keeps_its_id_its_masks_and_its_weight() -> None:
    record = pair_records(1)[0] | {"chosen_ids": [4, 5], "rejected_ids": [6, 7]}
    record |= {"chosen_mask": [True, True], "rejected_mask": [False, True], "weight": 0.5}
    (pair,) = read_pairs([record], VOCABULARY)
    assert (pair.row, pair.group_id) == (record["row"], record["pair_id"])
    assert pair.responses == (TokenResponse((4, 5)), TokenResponse((6, 7), (False, True)))
    assert (pair.label, pair.weight) == (None, 0.5)


@pytest.mark.parametrize("label", [True, False])
def test_an_unpaired_row_keeps_its_label(label: bool) -> None:
    record = {"row": "data:0", "completion_id": "ab", "prompt_ids": [1], "completion_ids": [2, 3]}
    (one,) = read_unpaired([record | {"completion_mask": [False, True], "label": label}], 4)
    assert one.responses == (TokenResponse((2, 3), (False, True)),)
    assert (one.label, one.weight) == (label, 1.0)
    with pytest.raises(ValueError, match="row 'data:0' has no label"):
        read_unpaired([record], 4)
    with pytest.raises(ValueError, match=f"label is '{label}'; it must be true or false"):
        read_unpaired([record | {"label": str(label)}], 4)


def test_a_pair_s_weight_is_that_of_its_chosen_response_as_a_demonstration() -> None:
    record = pair_records(1)[0]
    for name in ("prompt", "chosen"):
        record[f"{name}_mask"] = [name == "chosen"] * len(record[f"{name}_ids"])
    for weight in (None, 0.5):
        (one,) = read_demonstrations(
            [chosen_as_demonstration(record | {"weight": weight})], VOCABULARY
        )
        assert one.weight == (weight or 1.0)
        assert one.responses == (TokenResponse(tuple(record["chosen_ids"])),)


def test_demonstrations_have_the_same_id_exactly_if_they_are_the_same() -> None:
    def identity(**record: object) -> str:
        return read_demonstrations([record], 9)[0].group_id

    first = identity(row="a", prompt_ids=[1], response_ids=[2, 3])
    assert first == identity(row="b", input_ids=[1, 2, 3], mask=[False, True, True])
    others = [
        identity(prompt_ids=[1], response_ids=[2, 4]),
        identity(prompt_ids=[1, 2], response_ids=[3]),
        identity(input_ids=[1, 2, 3], mask=[False, True, False]),
    ]
    assert len({first, *others}) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen_ids": []}, "row 'data:1': chosen_ids is empty"),
        ({"prompt_ids": []}, "row 'data:1': prompt_ids is empty"),
        ({"rejected_ids": [3, VOCABULARY]}, "row 'data:1': rejected_ids has ids from 3 to 64"),
        ({"chosen_ids": None}, "row 'data:1' has no chosen_ids"),
        ({"weight": float("nan")}, "row 'data:1': weight is nan"),
        ({"weight": -1}, "row 'data:1': weight is -1"),
        ({"weight": "heavy"}, "row 'data:1': weight is 'heavy'"),
    ],
)
def test_a_record_that_cannot_be_scored_is_refused_by_name(change: dict, message: str) -> None:
    records = pair_records(2)
    records[1].update(change)
    with pytest.raises(ValueError, match=message):
        read_pairs(records, VOCABULARY)
