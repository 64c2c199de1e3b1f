"""Scores of a reward model against transformers' own, and whatever they must not depend on."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import oracle
import pytest
import token_groups
import torch
from families import FAMILIES, UNLIKE
from tiny_models import VOCABULARY, model_folder
from torch import Tensor
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    PreTrainedModel,
)

from steps.models.config import Dtype
from steps.models.value_head import value_head
from steps.reward_models.bradley_terry import BradleyTerry
from steps.reward_models.classifier import start_reward_model
from steps.reward_models.head_scores import VALUES, backward_values, values
from steps.reward_models.reward_training import reward_objective
from steps.scoring.attention import use_packed_attention
from steps.scoring.config import Attention
from steps.scoring.examples import TokenGroup, as_whole
from steps.scoring.packing import make_pack
from steps.scoring.parity import check_packing, choose_attention
from steps.scoring.scorer import Scorer

UNCLASSIFIED = ("granite", "cohere2")
"""The families of which transformers has no sequence classifier."""


@pytest.fixture(params=[family for family in UNLIKE if family.values[0] not in UNCLASSIFIED])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return model_folder(tmp_path / request.param, FAMILIES[request.param])


@pytest.fixture
def float64() -> Iterator[None]:
    with oracle.in_float64():
        yield


def reward_model(folder: Path, dtype: Dtype = Dtype.float64) -> PreTrainedModel:
    """With a head that has learnt something."""
    model = start_reward_model(folder, dtype).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        head = value_head(model).weight
        head.copy_(torch.randn(head.shape, generator=generator, dtype=torch.float64))
    return model


def packed(folder: Path, dtype: Dtype = Dtype.float64) -> PreTrainedModel:
    model = reward_model(folder, dtype)
    use_packed_attention(model)
    return model


def group(prompt: Sequence[int], *responses: Sequence[int]) -> TokenGroup:
    return as_whole(token_groups.group(prompt, *responses))


def pairs() -> list[TokenGroup]:
    """One weighs more than the others."""
    first, second, *others = map(as_whole, token_groups.pairs())
    return [first, replace(second, weight=2.5), *others]


def transformers_scores(model: PreTrainedModel, groups: Sequence[TokenGroup]) -> Tensor:
    """Of each response alone, in the order of the groups."""
    rows = [(*g.prompt_ids, *response.ids) for g in groups for response in g.responses]
    return torch.stack([model(input_ids=torch.tensor([row])).logits[0, 0] for row in rows])


@pytest.mark.usefixtures("float64")
def test_scores_are_those_of_transformers_sequence_classifier(folder: Path) -> None:
    groups = pairs()
    with torch.no_grad():
        expected = transformers_scores(reward_model(folder), groups)
    actual = values(packed(folder), make_pack(groups))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
    assert expected.std() > 0.1


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("reads", ["packs", "each response alone"])
def test_gradients_are_those_of_autograd_through_that_classifier(folder: Path, reads: str) -> None:
    groups = pairs()
    loss = BradleyTerry(center_rewards_coefficient=0.05)
    margins = torch.linspace(-1, 1, len(groups), dtype=torch.float64)

    slow = reward_model(folder)
    chosen, rejected = transformers_scores(slow, groups).view(-1, 2).unbind(1)
    weights = torch.tensor([g.weight for g in groups], dtype=torch.float64)
    by_pair = (
        torch.log(1 + torch.exp(rejected - chosen + margins)) + 0.05 * (chosen + rejected) ** 2
    )
    expected_loss = (weights * by_pair).mean()
    expected_loss.backward()

    model = packed(folder) if reads == "packs" else reward_model(folder)
    batch_loss = reward_objective((groups, margins), loss).batch_loss(range(len(groups)), None)
    everything = torch.arange(len(groups))
    seen = backward_values(model, make_pack(groups), lambda x, cut: batch_loss(x, everything[cut]))
    torch.testing.assert_close(seen.losses.sum(), expected_loss.detach(), rtol=0, atol=1e-10)
    gradients = {name: p.grad for name, p in slow.named_parameters() if p.grad is not None}
    largest = max(gradient.norm() for gradient in gradients.values())
    for name, parameter in model.named_parameters():
        wanted = gradients.get(name, torch.zeros_like(parameter))
        actual = torch.zeros_like(wanted) if parameter.grad is None else parameter.grad
        assert (actual - wanted).norm() <= 1e-8 * max(wanted.norm(), 1e-4 * largest), name
    assert value_head(model).weight.grad is not None


def test_a_pack_holds_a_prompt_once_and_every_token_of_every_response() -> None:
    one = group((1, 2, 3), (4, 5), (6,), (7, 8, 9))
    pack = make_pack([one])
    assert pack.input_ids[:9].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert pack.input_ids[pack.predictors].tolist() == [5, 6, 9]
    assert pack.num_scored.tolist() == [1, 1, 1]
    assert one.packed_tokens == 9
    assert one.longest_sequence == 6


def test_a_score_has_the_same_bits_in_any_pack_and_in_any_company(tmp_path: Path) -> None:
    for name in ("llama", "gpt2", "gemma2"):
        folder = model_folder(tmp_path / name, FAMILIES[name])
        model = packed(folder, Dtype.float32)
        groups = [pair for pair in pairs() if pair.prompt_ids]
        expected = values(model, make_pack(groups))

        def bits(scores: Tensor) -> list[float]:
            return scores.tolist()

        backwards = [replace(g, responses=g.responses[::-1]) for g in groups[::-1]]
        assert bits(values(model, make_pack(backwards)).flip(0)) == bits(expected)
        alone = [
            values(model, make_pack([replace(g, responses=(response,))])).item()
            for g in groups
            for response in g.responses
        ]
        assert alone == bits(expected)
        beside = group(groups[0].prompt_ids, (9, 9, 9), *(r.ids for r in groups[0].responses))
        assert bits(values(model, make_pack([beside])))[1:] == bits(expected)[:2]
        for budget in (1, 40, 10**6):
            scorer = Scorer(model, budget, VALUES)
            scores = scorer.logps(scorer.prepare(groups)).result().sequences
            scorer.close()
            assert bits(scores) == bits(expected)


def test_training_sees_the_bits_that_scoring_sees(tmp_path: Path) -> None:
    model = packed(model_folder(tmp_path, FAMILIES["llama"]), Dtype.float32)
    groups = pairs()
    pack = make_pack(groups)
    objective = reward_objective((groups, torch.zeros(len(groups))), BradleyTerry())
    loss, everything = objective.batch_loss(range(len(groups)), None), torch.arange(len(groups))
    seen = backward_values(model, pack, lambda scores, cut: loss(scores, everything[cut]))
    assert seen.logps.flatten().tolist() == values(model, pack).tolist()


def test_a_model_that_takes_no_packs_scores_in_padded_batches(tmp_path: Path) -> None:
    config = BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=1, n_head=4)
    folder = model_folder(tmp_path, lambda: BloomForCausalLM(config))
    groups = pairs()
    model = reward_model(folder, Dtype.float32)
    with torch.no_grad():
        expected = transformers_scores(model, groups)
    scorer = Scorer(model, 10**6, VALUES)
    with pytest.warns(UserWarning, match="in padded batches, not packed"):
        packing = choose_attention(scorer, groups, Attention.auto)
    assert packing.attention is Attention.padded
    scores = scorer.logps(scorer.prepare(groups)).result().sequences
    scorer.close()
    torch.testing.assert_close(scores, expected.double(), rtol=1e-5, atol=1e-5)


def test_packing_is_checked_although_a_new_head_gives_every_response_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_folder(tmp_path, FAMILIES["llama"])
    model = start_reward_model(folder, Dtype.float32).eval()
    groups = pairs()
    assert check_packing(model, groups, Attention.auto, probe=VALUES.probe).why_not is None
    assert values(model, make_pack(groups)).tolist() == [0] * 2 * len(groups)

    from steps.scoring import attention

    def without_prompt(query, key, value, pack, options):
        rows = [segment.stop - segment.start for segment in pack.segments]
        split = zip(*(x[0].split(rows, dim=1) for x in (query, key, value)), strict=True)
        return torch.cat([attention._attend(q, k, v, pack, options) for q, k, v in split])

    monkeypatch.setattr(attention, "_attend_segments", without_prompt)
    packing = check_packing(model, groups, Attention.auto, probe=VALUES.probe)
    assert packing.attention is Attention.padded
    assert packing.why_not is not None
