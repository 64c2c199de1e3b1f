"""The engine against the oracle: log-probabilities, losses and gradients of every architecture.

The engine reads many groups at once, each prompt once, and forms its gradients by hand; `oracle`
reads one sequence at a time and leaves the rest to autograd. In float64 both agree to rounding.
"""

import copy
import math
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import oracle
import pytest
import torch
from families import EVERY, FAMILIES, UNLIKE
from oracle import assert_same_gradients
from tiny_models import model_folder
from token_groups import group, ids, pairs, reference_logps, responses, unscored
from torch import Tensor
from transformers import PreTrainedModel

from steps.models import activation_checkpointing
from steps.models.activation_checkpointing import checkpoint_activations
from steps.models.config import ActivationCheckpointing, Dtype
from steps.models.folders import load_model
from steps.scoring.attention import use_packed_attention
from steps.scoring.examples import TokenGroup
from steps.scoring.logps import (
    GroupLoss,
    TokenLogps,
    forward_backward,
    sequence_logps,
    token_logps,
)
from steps.scoring.packing import make_pack

BETA = 0.7
UNLIKE_FAMILIES = pytest.mark.parametrize("folder", UNLIKE, indirect=True, scope="module")


@pytest.fixture(params=EVERY, scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"), FAMILIES[request.param])


@pytest.fixture
def float64() -> Iterator[None]:
    with oracle.in_float64():
        yield


@pytest.fixture(scope="module")
def slow(folder: Path) -> PreTrainedModel:
    return oracle.load(folder)


@cache
def loaded(folder: Path, dtype: Dtype) -> PreTrainedModel:
    return load_model(folder, dtype).eval()


def packed(folder: Path, dtype: Dtype = Dtype.float64) -> PreTrainedModel:
    """A model of the test's own: a copy is made sooner than a folder is read."""
    model = copy.deepcopy(loaded(folder, dtype))
    use_packed_attention(model)
    return model


# --- the oracle itself ---------------------------------------------------------------------------


@torch.no_grad()
def test_the_oracle_s_logps_are_those_of_a_labelled_forward(slow: PreTrainedModel) -> None:
    draw = random.Random(4)
    prompt, response = ids(draw, 5), ids(draw, 8)
    labels = torch.tensor([[-100] * len(prompt) + list(response)])
    loss = slow(input_ids=torch.tensor([[*prompt, *response]]), labels=labels).loss.item()
    # transformers takes its norms and this loss in float32.
    assert -loss * len(response) == pytest.approx(
        oracle.logp(slow, prompt, response).item(), rel=1e-5
    )


# --- log-probabilities ---------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
def test_every_token_s_logp_equals_the_oracle_s(folder: Path, slow: PreTrainedModel) -> None:
    groups = pairs()
    model = packed(folder)
    pack = make_pack(groups)
    actual = token_logps(model, pack)
    with torch.no_grad():
        expected = [oracle.token_logps(slow, p, r) for g in groups for p, r, _ in responses(g)]
    torch.testing.assert_close(actual, torch.cat(expected), rtol=0, atol=1e-10)
    sums = torch.stack([values.sum() for values in expected])
    torch.testing.assert_close(sequence_logps(actual, pack), sums, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("float64")
def test_only_scored_tokens_count(folder: Path, slow: PreTrainedModel) -> None:
    draw = random.Random(5)
    groups = [unscored(pair, draw) for pair in pairs()]
    model = packed(folder)
    pack = make_pack(groups)
    actual = sequence_logps(token_logps(model, pack), pack)
    with torch.no_grad():
        expected = [oracle.logp(slow, *response) for g in groups for response in responses(g)]
    torch.testing.assert_close(actual, torch.stack(expected), rtol=0, atol=1e-10)


@UNLIKE_FAMILIES
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("count", [1, 4])
def test_a_prompt_may_have_any_number_of_responses(
    folder: Path, slow: PreTrainedModel, count: int
) -> None:
    draw = random.Random(count)
    groups = [
        group(ids(draw, length), *(ids(draw, draw.randint(1, 9)) for _ in range(count)))
        for length in (2, 8, 1)
    ]
    model = packed(folder)
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


@UNLIKE_FAMILIES
@pytest.mark.usefixtures("float64")
def test_losses_and_gradients_equal_the_oracle_s(folder: Path, slow: PreTrainedModel) -> None:
    assert_the_oracle_s_gradients(folder, slow, pairs())


@pytest.mark.usefixtures("float64")
def test_they_do_too_where_some_tokens_are_scored(folder: Path, slow: PreTrainedModel) -> None:
    draw = random.Random(6)
    assert_the_oracle_s_gradients(folder, slow, [unscored(pair, draw) for pair in pairs()])


def assert_the_oracle_s_gradients(
    folder: Path, slow: PreTrainedModel, groups: list[TokenGroup]
) -> None:
    """In one pack, and in many."""
    reference = reference_logps(len(groups))
    model = packed(folder)

    losses = []
    for g, (chosen, rejected) in zip(groups, reference, strict=True):
        c, r = (oracle.logp(slow, *response) for response in responses(g))
        losses.append(oracle.dpo(c, r, chosen, rejected, beta=BETA))
    textbook = torch.stack(losses).mean()
    expected = oracle.gradients(slow, textbook)
    scored = forward_backward(model, make_pack(groups), dpo_of(reference, len(groups)))
    torch.testing.assert_close(scored.losses.sum(), textbook.detach(), rtol=0, atol=1e-10)
    assert_same_gradients(model, expected)

    model.zero_grad()
    for start in range(0, len(groups), 2):
        some = slice(start, start + 2)
        forward_backward(model, make_pack(groups[some]), dpo_of(reference[some], len(groups)))
    assert_same_gradients(model, expected)


@UNLIKE_FAMILIES
def test_activation_checkpointing_changes_no_gradient(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation_checkpointing, "LEAST_INPUT", 0)
    groups = pairs()
    reference = reference_logps(len(groups))
    pack, loss = make_pack(groups), dpo_of(reference, len(groups))
    forward_backward(plain := packed(folder), pack, loss)
    expected = {n: p.grad for n, p in plain.named_parameters() if p.grad is not None}
    for how in ("selective", "full"):
        checkpoint_activations(recomputed := packed(folder), ActivationCheckpointing(how))
        forward_backward(recomputed, pack, loss)
        assert_same_gradients(recomputed, expected)


# --- bits ----------------------------------------------------------------------------------------


@UNLIKE_FAMILIES
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


@UNLIKE_FAMILIES
def test_a_group_has_the_same_bits_with_and_without_gradients_so_its_own_reference_gives_ln_2(
    folder: Path,
) -> None:
    groups = pairs()
    model = packed(folder, Dtype.float32)
    pack = make_pack(groups)
    expected = sequence_logps(token_logps(model, pack), pack).view(-1, 2)
    scored = forward_backward(model, pack, dpo_of(expected, 1))
    assert torch.equal(scored.logps, expected)
    assert scored.losses.tolist() == [math.log(2)] * len(groups)


# --- degenerate cases ----------------------------------------------------------------------------


@UNLIKE_FAMILIES
@pytest.mark.usefixtures("float64")
def test_a_response_to_nothing_is_scored_from_its_second_token(
    folder: Path, slow: PreTrainedModel
) -> None:
    model = packed(folder)
    response = ids(random.Random(9), 7)
    pack = make_pack([group((), response)])
    assert len(pack.targets) == 6
    with torch.no_grad():
        expected = oracle.logp(slow, response[:1], response[1:])
    torch.testing.assert_close(token_logps(model, pack).sum(), expected, rtol=0, atol=1e-10)
