"""How far a student is from a teacher, beside dense distributions of both in float64."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from step_output import Folder
from test_teacher import EXACT, own_logps, small, teacher_of
from tiny_models import VOCABULARY, model_folder

from pipeline import Artifact
from steps.compare_distributions import compare_distributions
from steps.data.rows.jsonl import read_json_lines
from steps.scoring.examples import read_demonstrations

COMPARE: Any = compare_distributions.function


def scored(model: Path, work: Path, records: list[dict], **config: Any) -> Artifact:
    teacher_of(model, records, work, replace(EXACT, **config), model)
    return Artifact(work / "out", "", "")


@pytest.mark.parametrize("k", [8, VOCABULARY])
def test_a_comparison_is_that_of_dense_distributions(k: int, tmp_path: Path) -> None:
    models, records = [model_folder(tmp_path / f"{n}", seed=n) for n in (0, 1)], small(7)
    rows = read_demonstrations(records, VOCABULARY)
    dense = [[own_logps(model, row, VOCABULARY) for row in rows] for model in models]
    student = scored(models[0], tmp_path / "a", records, top_k=k, groups_per_shard=2)
    teacher = scored(models[1], tmp_path / "b", records, top_k=k)
    metrics = COMPARE(Folder(tmp_path), student, teacher)
    positions = read_json_lines(tmp_path / "positions.jsonl")
    for found in (*positions, metrics):
        at = slice(found.get("position", 1) - 1, found.get("position"))
        both = [torch.cat([row[at] for row in rows]).exp() for rows in dense]
        tops = [torch.zeros_like(p).scatter(1, p.topk(k).indices, 1) for p in both]
        q, p, *own = (
            torch.cat([x * apart, (x * (1 - apart)).sum(dim=1, keepdim=True)], dim=1)
            for x, apart in zip(both * 2, [tops[0] * tops[1]] * 2 + tops, strict=True)
        )
        values = {
            "forward_kl": torch.xlogy(p, p) - torch.xlogy(p, q),
            "reverse_kl": torch.xlogy(q, q) - torch.xlogy(q, p),
            "agreement": (both[0].argmax(1) == both[1].argmax(1)).double()[:, None],
            "student_entropy": torch.special.entr(own[0]),
            "teacher_entropy": torch.special.entr(own[1]),
            "shared_mass": p[:, :-1],
        }
        expected = {n: float(x.sum(dim=1).mean()) for n, x in values.items()} | {"tokens": len(p)}
        assert {name: found[name] for name in expected} == pytest.approx(expected, abs=2e-6)
    assert len(positions) == max(map(len, dense[0]))
    assert ("notices" in metrics) == (k < VOCABULARY)  # they keep few tokens in common


@pytest.mark.parametrize("others", [small(5, seed=1), small(4), small(6), small(5)[::-1]])
def test_a_model_is_its_own_equal_at_the_same_rows(others: list[dict], tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    own, same = (scored(model, tmp_path / f"{k}", small(5), top_k=k) for k in (8, 3))
    found = COMPARE(Folder(tmp_path), own, same)
    assert [found[n] for n in ("agreement", "forward_kl", "reverse_kl")] == pytest.approx([1, 0, 0])
    with pytest.raises(ValueError, match=r"row \d .*teacher_logprobs from the same tokens"):
        COMPARE(Folder(tmp_path), own, scored(model, tmp_path / "others", others))
