"""Figures of an evaluation against what they must be by construction."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, permutation_test
from step_output import Folder
from tiny_models import llama, model_folder, pair_records, token_files, word_tokenizer
from transformers import LlamaForCausalLM

from steps.data.tokens.token_tables import PAIR_TOKENS
from steps.evaluation import intervals, paired
from steps.evaluation.calibration import calibration_error, reliability
from steps.evaluation.config import KlConfig
from steps.evaluation.divergence import kl_per_token, sampled_kl, writing
from steps.evaluation.intervals import mean
from steps.evaluation.length_control import length_controlled
from steps.evaluation.paired import paired_means, paired_shares
from steps.evaluation.several_samples import pass_at_k, share_of_samples
from steps.generation.config import SamplingConfig
from steps.kinds import Model, PairTokens
from steps.measure_kl import measure_kl
from steps.shared.harm import far_from, stopped_ending

N = 2000


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)


def test_a_bootstrap_interval_holds_the_truth_about_as_often_as_it_says(
    random: np.random.Generator,
) -> None:
    intervals = [mean(random.normal(3.0, 2.0, 60).tolist(), seed) for seed in range(30)]
    held = sum(one["low"] <= 3.0 <= one["high"] for one in intervals)
    assert 26 <= held <= 30


@pytest.mark.parametrize(("meant", "truth"), [(1.0, 0.0), (0.5, 0.09), (0.0, 0.247)])
def test_the_interval_of_a_calibration_error_holds_the_truth_about_as_often_as_it_says(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch, meant: float, truth: float
) -> None:
    """Of margins of which a part is meant; the true error is that of many pairs."""
    monkeypatch.setattr(intervals, "RESAMPLES", 200)
    held = 0
    for _ in range(20):
        size = random.exponential(1.5, 100)
        right = random.random(100) < 1 / (1 + np.exp(-size * meant))
        error = calibration_error(np.where(right, size, -size))
        held += error["low"] <= truth <= error["high"]
        assert error["low"] <= error["value"] <= error["high"]
    assert held >= 17


def test_bins_are_a_tenth_of_the_predictions_from_a_half_to_one(
    random: np.random.Generator,
) -> None:
    """A loop over the ten bins, each with the pairs between its two edges."""
    margins = [*random.normal(0.5, 1.5, 200), 40.0]  # of which the last is certain
    expected, error = list[tuple[float, float, int]](), 0.0
    for number in range(10):
        first, last = 0.5 + number / 20, 0.55 + number / 20
        sure = [(1 / (1 + np.exp(-abs(m))), m > 0) for m in margins]
        held = [one for one in sure if first <= one[0] < last or (number == 9 and one[0] == 1)]
        predicted, right = np.mean([p for p, _ in held]), np.mean([won for _, won in held])
        expected.append((float(predicted), float(right), len(held)))
        error += abs(predicted - right) * len(held) / len(margins)
    found = [(one.predicted, one.observed, one.pairs) for one in reliability(margins)]
    assert found == [pytest.approx(one) for one in expected]
    assert calibration_error(margins)["value"] == pytest.approx(error)


def test_wins_that_are_owed_to_length_are_not_counted(random: np.random.Generator) -> None:
    longer = random.normal(40.0, 20.0, N)  # the chosen responses are longer
    wins = random.random(N) < 1 / (1 + np.exp(-longer / 20))
    assert wins.mean() > 0.8
    assert length_controlled(wins, longer)["value"] == pytest.approx(0.5, abs=0.08)


def test_pairs_show_a_difference_that_two_means_side_by_side_hide(
    random: np.random.Generator,
) -> None:
    hard = random.normal(0.0, 5.0, 80)
    one, other = hard + random.normal(0, 0.3, 80), hard + 0.3 + random.normal(0, 0.3, 80)
    first, second = mean(one.tolist()), mean(other.tolist())
    assert first["high"] > second["low"]
    found = paired_means(one, other)
    assert found.p < 0.001
    assert found.difference["low"] < 0.3 < found.difference["high"]


@pytest.mark.parametrize("pairs", [2, 13, 14, 60])
def test_p_values_are_those_of_scipy(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch, pairs: int
) -> None:
    monkeypatch.setattr(paired, "_AT_ONCE", 2**16)  # not all signs of 14 pairs or more at once
    one, other = random.normal(0, 1, pairs).round(1), random.normal(0.2, 1, pairs).round(1)
    by_scipy = permutation_test(
        (other - one,),
        lambda x, axis: x.mean(axis=axis),
        permutation_type="samples",
        n_resamples=9999,
        rng=np.random.default_rng(0),
    )
    assert paired_means(one, other).p == pytest.approx(by_scipy.pvalue, rel=1e-12)
    gained, lost = int((other > one).sum()), int((other < one).sum())
    exact = binomtest(gained, gained + lost).pvalue
    assert paired_shares(one > other, other > one).p == pytest.approx(exact, rel=1e-9)


def test_a_share_is_compared_by_the_pairs_on_which_two_models_disagree() -> None:
    one = [True] * 50 + [False] * 12
    other = [True] * 50 + [True] * 10 + [False] * 2
    found = paired_shares(one, other)
    assert found.p == pytest.approx(2 * 0.5**10)  # ten gained, none lost: exact, two-sided
    assert found.difference["value"] == pytest.approx(10 / 62)
    assert paired_shares(one, one).p == 1.0
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_shares([True], [True, False])


def test_sampled_kl_is_the_divergence_of_known_distributions(random: np.random.Generator) -> None:
    policy, reference = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.3, 0.4])
    truth = float((policy * np.log(policy / reference)).sum())
    drawn = random.choice(3, size=(200, 8), p=policy)
    ratios = np.log(policy / reference)[drawn]
    found = sampled_kl(ratios)
    assert found["low"] < truth < found["high"]
    each = kl_per_token(ratios.tolist(), np.full((200, 8), 4).tolist())
    assert each["value"] == pytest.approx(found["value"] / 4)


def kl_of(policy: Path, reference: Path, records: list[dict[str, Any]], out: Path) -> dict:
    tokens = token_files(out / "tokens", PAIR_TOKENS, records)
    sampling = SamplingConfig(1, temperature=1.0, num_completions=2000)
    models = (Model(folder, "", "") for folder in (policy, reference))
    given = PairTokens(tokens, "", "")
    measured: Any = measure_kl.function
    return measured(Folder(out / "kl"), given, *models, KlConfig(sampling=sampling))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"temperature": 0.7}, "sampling.temperature must be 1, .* got 0.7"),
        ({"top_p": 0.9}, "sampling.top_p must be 1, to draw from the model's own distribution"),
        ({"top_k": 20}, "sampling.top_k must be 0, .* got 20"),
        ({"min_p": 0.1}, "sampling.min_p must be 0, .* got 0.1"),
    ],
)
def test_a_divergence_is_measured_on_what_the_model_itself_writes(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        KlConfig(sampling=SamplingConfig(**{"temperature": 1.0, **settings}))


def test_measured_kl_is_that_of_all_possible_responses(tmp_path: Path) -> None:
    folders = [model_folder(tmp_path / f"{seed}", llama, seed) for seed in (0, 1)]
    word_tokenizer().save_pretrained(folders[0])
    (record,) = pair_records(1)
    loaded: list[Any] = [LlamaForCausalLM.from_pretrained(folder) for folder in folders]
    prompt = torch.tensor([record["prompt_ids"]])
    one, other = (model(prompt).logits[0, -1].detach().double().log_softmax(-1) for model in loaded)
    truth = float((one.exp() * (one - other)).sum())
    found = kl_of(folders[0], folders[1], [record], tmp_path)
    assert found["kl"]["low"] < truth < found["kl"]["high"]
    assert found["kl"]["high"] - found["kl"]["low"] < 0.2 * truth


SHARES = ((12, 12), (12, 9), (12, 2), (1, 0), (0, 0))
"""How many of 12 answers ended, before and after; one in twelve is too few to tell."""


def test_answers_that_stop_ending_and_a_model_far_from_its_baseline_are_told() -> None:
    def answers(ended: int) -> list[dict[str, Any]]:
        return [{"ended": n < ended, "tokens": 8, "repeated": 0.0} for n in range(12)]

    found = writing(answers(9))
    named = [found[f"sampled/{name}"]["value"] for name in ("ended", "tokens", "repetition")]
    assert named == [0.75, 8, 0]
    told = [bool(stopped_ending(before / 12, n / 12, 12, "")) for before, n in SHARES]
    assert told == [False, False, True, False, False]
    assert [bool(far_from(nats, "")) for nats in (None, 0.3, 4.5)] == [False, False, True]


def test_a_reference_that_does_not_know_a_token_is_told_by_name(tmp_path: Path) -> None:
    policy = model_folder(tmp_path / "policy", llama)
    word_tokenizer().save_pretrained(policy)
    fewer = llama()
    fewer.resize_token_embeddings(30)
    fewer.save_pretrained(tmp_path / "fewer")
    told = r"row 'data:0' has the token \d+, and the vocabulary of the reference is 0 to 29"
    with pytest.raises(ValueError, match=told):
        kl_of(policy, tmp_path / "fewer", pair_records(1), tmp_path)


def test_a_reference_to_which_sampled_ids_mean_something_else_is_refused(tmp_path: Path) -> None:
    policy, reference = (model_folder(tmp_path / name, llama) for name in ("policy", "reference"))
    word_tokenizer().save_pretrained(policy)
    word_tokenizer(backwards=True).save_pretrained(reference)
    with pytest.raises(ValueError, match="compare models with one tokenizer"):
        kl_of(policy, reference, pair_records(1), tmp_path)


def test_the_interval_of_a_share_of_samples_holds_it_where_prompts_differ(
    random: np.random.Generator,
) -> None:
    held = 0
    for _ in range(100):
        easy = random.beta(0.5, 0.5, 50)  # half of all samples are right
        found = share_of_samples((random.random((50, 16)) < easy[:, None]).tolist())
        held += found["low"] <= 0.5 <= found["high"]
    assert held >= 85  # with an interval of 800 independent samples, about 55


def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_with_a_right_one(
    random: np.random.Generator,
) -> None:
    marks = (random.random((7, 10)) < random.random((7, 1))).tolist()
    found = pass_at_k(marks)
    assert list(found) == ["pass_at_2", "pass_at_4", "pass_at_8", "pass_at_10"]
    for name, share in found.items():
        chosen = [map(any, combinations(m, int(name.removeprefix("pass_at_")))) for m in marks]
        assert share["value"] == pytest.approx(np.mean([np.mean(list(any_)) for any_ in chosen]))
        assert share["low"] <= share["value"] <= share["high"]
    assert list(pass_at_k([[True] * 4, [False] * 3])) == ["pass_at_2", "pass_at_3"]
    assert pass_at_k([[True], [False]]) == {}
