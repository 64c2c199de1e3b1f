"""Reference logps: computed once, kept by shard, found by what a pair is."""

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tiny_models import VOCABULARY, folder_bytes, model_folder, pair_records

from steps.data.images.images_of_rows import ImageOfRow
from steps.models.config import Dtype
from steps.models.folders import load_model
from steps.models.workplace import Left, OnProgress, Workplace, ignore_progress
from steps.scoring.attention import use_packed_attention
from steps.scoring.config import Attention, ReferenceConfig
from steps.scoring.examples import mismatched, read_pairs, read_unpaired
from steps.scoring.logps import token_logps
from steps.scoring.packing import make_pack
from steps.scoring.reference import read_reference, run_reference
from steps.training.config import DpoConfig, KtoConfig
from steps.training.recipes import run_dpo, run_kto

SHARDS_OF_TWO = ReferenceConfig(groups_per_shard=2)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model")


def compute(model: Path, records: list[dict], work: Path, config=SHARDS_OF_TWO, **options) -> dict:
    return run_reference(
        model, records, config, Workplace(work / "out", work / "scratch", **options)
    )


def token_by_token(model: Path, records: list[dict]) -> list[list[list[float]]]:
    """Of every pair, alone: what its two responses get."""
    scorer = load_model(model)
    use_packed_attention(scorer)
    tokens = []
    for group in read_pairs(records, VOCABULARY):
        sizes = [response.num_scored for response in group.responses]
        tokens.append([t.tolist() for t in token_logps(scorer, make_pack([group])).split(sizes)])
    return tokens


def table_of(work: Path) -> pa.Table:
    return pa.concat_tables(map(pq.read_table, shards(work / "out")))


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("logps-*.parquet"))


def modified(work: Path) -> dict[str, int]:
    return {f.name: f.stat().st_mtime_ns for f in shards(work / "scratch/shards")}


def test_holds_the_logps_of_every_distinct_pair(model: Path, tmp_path: Path) -> None:
    records = pair_records(5)
    reports = []
    summary = compute(
        model,
        [*records, {**records[2], "row": "a duplicate"}],
        tmp_path,
        on_progress=lambda done, total, metrics: reports.append((done, total)),
    )
    table, tokens = table_of(tmp_path), token_by_token(model, records)
    assert table["group_id"].to_pylist() == [r["pair_id"] for r in records]
    assert table["token_logps"].to_pylist() == tokens
    assert table["scored"].to_pylist() == [[len(side) for side in pair] for pair in tokens]
    sums = torch.tensor([[sum(side) for side in pair] for pair in tokens], dtype=torch.float64)
    torch.testing.assert_close(torch.tensor(table["logps"].to_pylist()).double(), sums)
    assert len(shards(tmp_path / "out")) == 3
    assert reports == [(2, 5), (4, 5), (5, 5)]
    assert summary["groups"] == 5
    assert summary["logps/chosen"] == pytest.approx(sums[:, 0].mean().item())


def test_rows_that_share_an_id_and_not_their_masks_are_refused(model: Path, tmp_path: Path) -> None:
    records = pair_records(3)
    ids = records[1]["chosen_ids"] = [1, 2, 3]
    masks = [[True, False, True], [False, True, True]]
    records[1]["chosen_mask"], other = masks[0], {**records[1], "row": "other"}
    other |= {"chosen_ids": ids, "chosen_mask": masks[1]}
    with pytest.raises(ValueError, match="rows 'data:1' and 'other' have other tokens or masks"):
        compute(model, [*records, other], tmp_path)


def test_is_found_by_pair_whatever_the_order(model: Path, tmp_path: Path) -> None:
    records = pair_records(7)
    compute(model, records, tmp_path)
    forwards = read_pairs(records, VOCABULARY)
    reference = read_reference(tmp_path / "out")
    expected = torch.tensor(table_of(tmp_path)["logps"].to_pylist(), dtype=torch.float64)
    assert torch.equal(reference.of(forwards), expected)
    assert torch.equal(reference.of(forwards[::-1]), expected.flip(0))


def test_an_interrupted_computation_keeps_its_finished_shards(model: Path, tmp_path: Path) -> None:
    records = pair_records(7)

    class Interrupted(Exception):
        pass

    def interrupt(done: int, total: int, metrics: object) -> None:
        if done == 4:
            raise Interrupted

    with pytest.raises(Interrupted):
        compute(model, records, tmp_path, on_progress=interrupt)
    finished = modified(tmp_path)
    assert sorted(finished) == ["logps-00000.parquet", "logps-00001.parquet"]
    compute(model, records, tmp_path)
    assert finished.items() <= modified(tmp_path).items()
    compute(model, records, tmp_path / "whole")
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "whole/out")


def test_a_computation_that_is_told_to_leave_goes_on_after_its_shards(
    model: Path, tmp_path: Path
) -> None:
    records, asked = pair_records(7), []

    def stopping() -> bool:
        asked.append(None)
        return len(asked) == 2

    with pytest.raises(Left, match="after 4 of 7"):
        compute(model, records, tmp_path, stopping=stopping)
    finished = modified(tmp_path)
    assert sorted(finished) == ["logps-00000.parquet", "logps-00001.parquet"]
    compute(model, records, tmp_path, stopping=lambda: len(asked) < 2)
    assert finished.items() <= modified(tmp_path).items()
    assert read_reference(tmp_path / "out").of(read_pairs(records, VOCABULARY)).shape == (7, 2)


def test_a_torn_shard_is_computed_again(model: Path, tmp_path: Path) -> None:
    records = pair_records(4)
    compute(model, records, tmp_path)
    whole = folder_bytes(tmp_path / "out")
    before = modified(tmp_path)
    os.truncate(tmp_path / "scratch/shards/logps-00001.parquet", 100)
    compute(model, records, tmp_path)
    assert folder_bytes(tmp_path / "out") == whole
    after = modified(tmp_path)
    assert after["logps-00000.parquet"] == before["logps-00000.parquet"]
    assert after["logps-00001.parquet"] != before["logps-00001.parquet"]


def test_a_flipped_bit_in_a_logp_is_found(model: Path, tmp_path: Path) -> None:
    records = pair_records(4)
    compute(model, records, tmp_path)
    whole = folder_bytes(tmp_path / "out")
    for folder in (tmp_path / "out", tmp_path / "scratch/shards"):
        flip_a_bit(folder / "logps-00001.parquet", column="logps.list.element")
    with pytest.raises(ValueError, match=r"logps-00001\.parquet is damaged .*compute it again"):
        read_reference(tmp_path / "out")
    compute(model, records, tmp_path)
    assert folder_bytes(tmp_path / "out") == whole


def flip_a_bit(file: Path, column: str) -> None:
    """Of the last of the values that a column has, which stand before the pages that name them."""
    group = pq.read_metadata(file).row_group(0)
    columns = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
    content = bytearray(file.read_bytes())
    content[columns[column].data_page_offset - 5] ^= 1
    file.write_bytes(content)


def test_a_shard_of_other_pairs_is_not_used(model: Path, tmp_path: Path) -> None:
    compute(model, pair_records(4, seed=1), tmp_path)
    compute(model, pair_records(4, seed=2), tmp_path)
    compute(model, pair_records(4, seed=2), tmp_path / "fresh")
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "fresh/out")


def test_a_shard_computed_in_another_way_is_not_used(model: Path, tmp_path: Path) -> None:
    other = replace(SHARDS_OF_TWO, attention=Attention.padded)
    compute(model, pair_records(4), tmp_path)
    compute(model, pair_records(4), tmp_path, other)
    assert read_reference(tmp_path / "out").scored_by.attention == "padded"


def train_against(
    reference: Path,
    model: Path,
    records: list[dict],
    config: DpoConfig,
    on_progress: OnProgress = ignore_progress,
) -> None:
    place = Workplace(reference.parent / "dpo", reference.parent / "dpo-scratch", on_progress)
    run_dpo(model, records, reference, config, place)


def test_training_on_a_pair_without_a_reference_names_the_pair(model: Path, tmp_path: Path) -> None:
    records = pair_records(5)
    compute(model, records[:3] + records[4:], tmp_path)
    message = rf"lacks 1 of 5 rows.* {records[3]['pair_id']} \(row 'data:3'\)"
    with pytest.raises(ValueError, match=message):
        train_against(tmp_path / "out", model, records, DpoConfig())


@pytest.mark.parametrize(
    ("computed", "message"),
    [
        ({"dtype": Dtype.bfloat16}, "dtype=bfloat16 but the policy runs with dtype=float32"),
        ({"attention": Attention.padded}, "attention=padded but the policy runs with .*=packed"),
    ],
    ids=["dtype", "attention"],
)
def test_a_reference_computed_in_another_way_is_refused_by_the_setting(
    model: Path, tmp_path: Path, computed: dict, message: str
) -> None:
    records = pair_records(2)
    compute(model, records, tmp_path, ReferenceConfig(**computed))
    with pytest.raises(ValueError, match=message):
        train_against(tmp_path / "out", model, records, DpoConfig())


def test_other_masks_over_the_same_tokens_are_refused(model: Path, tmp_path: Path) -> None:
    records = pair_records(3)
    compute(model, records, tmp_path)
    records[1]["chosen_mask"] = [True] + [False] * (len(records[1]["chosen_ids"]) - 1)
    with pytest.raises(ValueError, match=r"\(row 'data:1'\), but these tokens mark \[1, "):
        train_against(tmp_path / "out", model, records, DpoConfig())


def test_training_does_not_start_away_from_its_reference(model: Path, tmp_path: Path) -> None:
    records = pair_records(4)
    compute(model, records, tmp_path)
    other = model_folder(tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match="would not start from its reference") as raised:
        train_against(tmp_path / "out", other, records, DpoConfig())
    assert "differs between the two: model (its weights or its config)" in str(raised.value)
    assert not (tmp_path / "dpo").exists()
    train_against(tmp_path / "out", other, records, DpoConfig(check_start=False))


def test_single_responses_are_scored_beside_other_prompts_too(model: Path, tmp_path: Path) -> None:
    records = [
        {
            "row": record["row"],
            "completion_id": record["pair_id"],
            "prompt_ids": record["prompt_ids"],
            "completion_ids": record["chosen_ids"],
            "label": True,
        }
        for record in pair_records(3)
    ]
    summary = compute(model, records, tmp_path)
    assert summary["groups"] == 6
    groups = read_unpaired(records, VOCABULARY)
    others = mismatched(groups)
    assert [(o.prompt_ids, o.responses) for o in others] == [
        (groups[i].prompt_ids, groups[i - 1].responses) for i in range(3)
    ]
    reference = read_reference(tmp_path / "out")
    assert reference.of(groups).shape == reference.of(others).shape == (3, 1)
    shuffled = [records[1], records[0], records[2]]  # so other responses stand beside the prompts
    with pytest.raises(ValueError, match="lacks 3 of 3 rows"):
        run_kto(model, shuffled, tmp_path / "out", KtoConfig(), Workplace(tmp_path / "k", tmp_path))


def test_a_response_of_another_prompt_stands_beside_each_prompt() -> None:
    """Also where the responses of one prompt follow one another, as good and bad ones do in many
    data sets: to its own prompt, a response tells nothing of KTO's baseline."""

    def others(*prompts: int, images: str = "") -> list[int]:
        records = [
            {
                "row": str(index),
                "completion_id": str(index),
                "prompt_ids": [prompt],
                "completion_ids": [index],
                "label": True,
                "images": [ImageOfRow(Path("images"), name) for name in images[index : index + 1]],
            }
            for index, prompt in enumerate(prompts)
        ]
        return [o.responses[0].ids[0] for o in mismatched(read_unpaired(records, VOCABULARY))]

    assert others(1, 2, 3) == [2, 0, 1]
    assert others(1, 1, 2, 2, 2, 1) == [2, 3, 0, 1, 0, 2]
    assert others(1, 1, 1) == [2, 0, 1]
    assert others(1) == [0]
    # Where a good and a bad response to each prompt alternate, both kinds are taken equally often.
    assert others(1, 1, 2, 2, 3, 3) == [4, 5, 0, 1, 2, 3]
    # Equal questions about other images are other prompts.
    assert others(1, 1, 1, 1, images="aabb") == [2, 3, 0, 1]


def test_held_out_rewards_need_the_reference_that_training_has(model: Path, tmp_path: Path) -> None:
    records, held_out = pair_records(4), pair_records(4, seed=1)
    compute(model, records, tmp_path / "own")
    compute(model, held_out, tmp_path / "held out")
    compute(model_folder(tmp_path / "stranger", seed=5), held_out, tmp_path / "strange")

    def evaluated(work: Path) -> None:
        run_dpo(
            model,
            records,
            tmp_path / "own/out",
            DpoConfig(max_steps=1, eval_every_steps=1),
            Workplace(work / "model", work / "scratch"),
            held_out=(held_out, work / "out"),
        )

    evaluated(tmp_path / "held out")
    with pytest.raises(ValueError, match=r"strange/out and in .*own/out are of two models"):
        evaluated(tmp_path / "strange")
