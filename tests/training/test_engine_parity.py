"""The engine against the oracle: log-probabilities, losses and gradients of every architecture.

The engine reads many groups at once, each prompt once, and forms its gradients by hand; `oracle`
reads one sequence at a time and leaves the rest to autograd. In float64 both agree to rounding.
"""

import math
import random
from collections.abc import Iterator
from pathlib import Path

import oracle
import pytest
import torch
from families import FAMILIES
from oracle import assert_same_gradients
from tiny_models import model_folder
from token_groups import group, ids, pairs, reference_logps, responses, unscored
from torch import Tensor
from transformers import PreTrainedModel

from steps.models import recomputing
from steps.models.config import ActivationCheckpointing, Dtype
from steps.models.folders import load_model
from steps.models.recomputing import checkpoint_activations
from steps.scoring.attention import use_packed_attention
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.logps import (
    GroupLoss,
    TokenLogps,
    forward_backward,
    sequence_logps,
    token_logps,
)
from steps.scoring.packing import make_pack

BETA = 0.7


@pytest.fixture(params=FAMILIES, scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"), FAMILIES[request.param])


@pytest.fixture
def float64() -> Iterator[None]:
    with oracle.Float64():
        yield


def packed(folder: Path, dtype: Dtype = Dtype.float64) -> PreTrainedModel:
    model = load_model(folder, dtype).eval()
    use_packed_attention(model)
    return model


# --- the oracle itself ---------------------------------------------------------------------------


@torch.no_grad()
def test_the_oracle_s_logps_are_those_of_a_labelled_forward(folder: Path) -> None:
    draw = random.Random(4)
    model = oracle.load(folder)
    prompt, response = ids(draw, 5), ids(draw, 8)
    labels = torch.tensor([[-100] * len(prompt) + list(response)])
    loss = model(input_ids=torch.tensor([[*prompt, *response]]), labels=labels).loss.item()
    # transformers takes its norms and this loss in float32.
    assert -loss * len(response) == pytest.approx(
        oracle.logp(model, prompt, response).item(), rel=1e-5
    )


# --- log-probabilities ---------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
def test_every_token_s_logp_equals_the_oracle_s(folder: Path) -> None:
    groups = pairs()
    model, slow = packed(folder), oracle.load(folder)
    pack = make_pack(groups)
    actual = token_logps(model, pack)
    with torch.no_grad():
        expected = [oracle.token_logps(slow, p, r) for g in groups for p, r, _ in responses(g)]
    torch.testing.assert_close(actual, torch.cat(expected), rtol=0, atol=1e-10)
    sums = torch.stack([values.sum() for values in expected])
    torch.testing.assert_close(sequence_logps(actual, pack), sums, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("float64")
def test_only_scored_tokens_count(folder: Path) -> None:
    draw = random.Random(5)
    groups = [unscored(pair, draw) for pair in pairs()]
    model, slow = packed(folder), oracle.load(folder)
    pack = make_pack(groups)
    actual = sequence_logps(token_logps(model, pack), pack)
    with torch.no_grad():
        expected = [oracle.logp(slow, *response) for g in groups for response in responses(g)]
    torch.testing.assert_close(actual, torch.stack(expected), rtol=0, atol=1e-10)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_prompt_may_have_any_number_of_responses(folder: Path, count: int) -> None:
    draw = random.Random(count)
    groups = [
        group(ids(draw, length), *(ids(draw, draw.randint(1, 9)) for _ in range(count)))
        for length in (2, 8, 1)
    ]
    model, slow = packed(folder), oracle.load(folder)
    pack = make_pack(groups)
    actual = sequence_logps(token_logps(model, pack), pack)
    with torch.no_grad():
        expected = [oracle.logp(slow, *response) for g in groups for response in responses(g)]
    torch.testing.assert_close(actual, torch.stack(expected), rtol=0, atol=1e-10)


# --- losses and gradients ------------------------------------------------------------------------


def dpo_of(reference: Tensor, total: int) -> GroupLoss:
    """The mean DPO loss, written with nothing of the engine's."""

    def loss(logps: TokenLogps, groups: slice) -> tuple[Tensor, dict[str, Tensor]]:
        (c, r), (rc, rr) = logps.sums().unbind(1), reference[groups].unbind(1)
        return oracle.dpo(c, r, rc, rr, beta=BETA) / total, {}

    return loss


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("masked", [False, True], ids=["all scored", "some scored"])
def test_losses_and_gradients_equal_the_oracle_s(folder: Path, masked: bool) -> None:
    draw = random.Random(6)
    groups = [unscored(pair, draw) for pair in pairs()] if masked else pairs()
    reference = reference_logps(len(groups))
    model, slow = packed(folder), oracle.load(folder)

    def textbook() -> Tensor:
        losses = []
        for g, (chosen, rejected) in zip(groups, reference, strict=True):
            c, r = (oracle.logp(slow, *response) for response in responses(g))
            losses.append(oracle.dpo(c, r, chosen, rejected, beta=BETA))
        return torch.stack(losses).mean()

    expected = oracle.gradients(slow, textbook)
    with torch.no_grad():
        expected_loss = textbook()
    scored = forward_backward(model, make_pack(groups), dpo_of(reference, len(groups)))
    torch.testing.assert_close(scored.losses.sum(), expected_loss, rtol=0, atol=1e-10)
    assert_same_gradients(model, expected)


@pytest.mark.usefixtures("float64")
def test_gradients_gather_over_packs_as_over_one(folder: Path) -> None:
    groups = pairs()
    reference = reference_logps(len(groups))
    whole, parts = packed(folder), packed(folder)
    forward_backward(whole, make_pack(groups), dpo_of(reference, len(groups)))
    for start in range(0, len(groups), 2):
        stop = start + 2
        loss = dpo_of(reference[start:stop], len(groups))
        forward_backward(parts, make_pack(groups[start:stop]), loss)
    assert_same_gradients(
        parts, {n: p.grad for n, p in whole.named_parameters() if p.grad is not None}
    )


@pytest.mark.parametrize("how", ["selective", "full"])
def test_activation_checkpointing_changes_no_gradient(
    folder: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recomputing, "_WORTHWHILE_BYTES", 0)
    groups = pairs()
    reference = reference_logps(len(groups))
    plain, recomputed = packed(folder), packed(folder)
    checkpoint_activations(recomputed, ActivationCheckpointing(how))
    for model in (plain, recomputed):
        forward_backward(model, make_pack(groups), dpo_of(reference, len(groups)))
    assert_same_gradients(
        recomputed, {n: p.grad for n, p in plain.named_parameters() if p.grad is not None}
    )


# --- bits ----------------------------------------------------------------------------------------


def test_a_group_has_the_same_bits_whatever_it_is_packed_with(folder: Path) -> None:
    groups = pairs()
    model = packed(folder, Dtype.float32)
    together = make_pack(groups)
    expected = sequence_logps(token_logps(model, together), together).view(-1, 2)
    for number, alone in enumerate(groups):
        pack = make_pack([alone])
        assert torch.equal(sequence_logps(token_logps(model, pack), pack), expected[number])
    backwards = make_pack(groups[::-1])
    reversed_logps = sequence_logps(token_logps(model, backwards), backwards).view(-1, 2)
    assert torch.equal(reversed_logps.flip(0), expected)


def test_a_group_has_the_same_bits_with_and_without_gradients(folder: Path) -> None:
    groups = pairs()
    model = packed(folder, Dtype.float32)
    pack = make_pack(groups)
    expected = sequence_logps(token_logps(model, pack), pack).view(-1, 2)
    scored = forward_backward(model, pack, dpo_of(expected, len(groups)))
    assert torch.equal(scored.logps, expected)


def test_identical_responses_have_the_same_bits(folder: Path) -> None:
    model = packed(folder, Dtype.float32)
    draw = random.Random(8)
    for length in (1, 2, 9, 33):
        same = ids(draw, length)
        pack = make_pack([group(ids(draw, 6), same, same)])
        chosen, rejected = sequence_logps(token_logps(model, pack), pack)
        torch.testing.assert_close(chosen, rejected, rtol=1e-6, atol=0)


# --- degenerate cases ----------------------------------------------------------------------------


def test_a_policy_that_is_its_reference_has_a_loss_of_ln_2(folder: Path) -> None:
    groups = pairs()
    model = packed(folder, Dtype.float32)
    pack = make_pack(groups)
    reference = sequence_logps(token_logps(model, pack), pack).view(-1, 2)
    losses = forward_backward(model, pack, dpo_of(reference, 1)).losses
    assert losses.tolist() == [math.log(2)] * len(groups)


@pytest.mark.usefixtures("float64")
def test_swapping_chosen_and_rejected_negates_the_margin(folder: Path) -> None:
    groups = pairs()
    swapped = [TokenGroup(g.row, g.group_id, g.prompt_ids, g.responses[::-1]) for g in groups]
    model = packed(folder)
    margins = []
    for pack in map(make_pack, (groups, swapped)):
        chosen, rejected = sequence_logps(token_logps(model, pack), pack).view(-1, 2).unbind(1)
        margins.append(chosen - rejected)
    torch.testing.assert_close(margins[0], -margins[1], rtol=0, atol=1e-10)


@pytest.mark.usefixtures("float64")
def test_a_response_to_nothing_is_scored_from_its_second_token(folder: Path) -> None:
    model, slow = packed(folder), oracle.load(folder)
    response = ids(random.Random(9), 7)
    pack = make_pack([group((), response)])
    assert len(pack.targets) == 6
    with torch.no_grad():
        expected = oracle.logp(slow, response[:1], response[1:])
    torch.testing.assert_close(token_logps(model, pack).sum(), expected, rtol=0, atol=1e-10)


def test_a_group_without_anything_to_score_is_refused_by_its_row() -> None:
    with pytest.raises(ValueError, match="row 'r'"):
        TokenGroup("r", "g", (), (TokenResponse((3,)), TokenResponse((4, 5))))
    with pytest.raises(ValueError, match="row 'r'"):
        TokenGroup("r", "g", (1, 2), (TokenResponse((3, 4), (False, False)),))
