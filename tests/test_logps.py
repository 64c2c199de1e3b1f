"""Log-probabilities of responses: right for every architecture, whatever they are batched with."""

import random
from pathlib import Path

import pytest
import torch
from tiny_models import ARCHITECTURES, VOCABULARY, gemma2, llama, model_folder, pair_records
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from steps.training.batches import pad_right
from steps.training.config import Dtype
from steps.training.examples import TokenSequence, read_pairs
from steps.training.logps import pair_logps, response_logps, score_pairs
from steps.training.models import load_model


@pytest.fixture(params=ARCHITECTURES)
def float64_model(request: pytest.FixtureRequest, tmp_path: Path) -> PreTrainedModel:
    folder = model_folder(tmp_path / "model", ARCHITECTURES[request.param])
    return load_model(folder, Dtype.float64).eval()


def assert_same(model: PreTrainedModel, actual: Tensor, expected: Tensor) -> None:
    # transformers' eager attention, which soft-capping needs, takes its softmax in float32.
    tolerance = 1e-6 if model.config.model_type == "gemma2" else 1e-10
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def sequences(count: int) -> list[TokenSequence]:
    draw = random.Random(5)
    return [
        TokenSequence(
            tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 9))),
            tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 14))),
        )
        for _ in range(count)
    ]


def textbook_logp(model: PreTrainedModel, sequence: TokenSequence) -> float:
    """sum over t of log softmax(logits_t)[token_(t+1)], of one sequence, by a plain forward."""
    ids = torch.tensor([sequence.prompt_ids + sequence.response_ids])
    logits = model(input_ids=ids).logits[0]
    log_softmax = logits - logits.exp().sum(dim=-1, keepdim=True).log()
    first = len(sequence.prompt_ids)
    return sum(log_softmax[t - 1, ids[0, t]].item() for t in range(first, len(sequence)))


@torch.no_grad()
def test_equals_the_textbook_sum_of_a_plain_forward(float64_model: PreTrainedModel) -> None:
    batch = sequences(7)
    expected = torch.tensor([textbook_logp(float64_model, s) for s in batch], dtype=torch.float64)
    actual = response_logps(float64_model, pad_right(batch))
    assert actual.dtype == torch.float64
    assert_same(float64_model, actual, expected)


@torch.no_grad()
def test_padding_and_the_other_rows_change_nothing(float64_model: PreTrainedModel) -> None:
    first, *others = sequences(4)
    alone = response_logps(float64_model, pad_right([first]))
    longer = TokenSequence((7,) * 11, (9,) * 20)
    beside = response_logps(float64_model, pad_right([first, longer, *others]))
    assert_same(float64_model, beside[:1], alone)


@torch.no_grad()
def test_any_valid_padding_token_gives_the_same_value(float64_model: PreTrainedModel) -> None:
    batch = pad_right(sequences(4))
    expected = response_logps(float64_model, batch)
    for row, sequence in enumerate(sequences(4)):
        batch.input_ids[row, len(sequence) :] = 17
    assert_same(float64_model, response_logps(float64_model, batch), expected)


@torch.no_grad()
def test_attention_scores_are_soft_capped_where_the_architecture_says_so(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, gemma2)
    ids = torch.tensor([list(range(12))])
    eager = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    expected = eager(input_ids=ids).logits
    torch.testing.assert_close(load_model(folder)(input_ids=ids).logits, expected)
    for layer in eager.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert (eager(input_ids=ids).logits - expected).abs().max() > 1e-3  # so it does matter here


def test_a_pair_has_the_same_bits_with_and_without_gradients(tmp_path: Path) -> None:
    model = load_model(model_folder(tmp_path)).eval()
    pairs = read_pairs(pair_records(8), VOCABULARY)
    chosen, rejected = score_pairs(model, pairs)
    for i, pair in enumerate(pairs):
        with_gradient = pair_logps(model, [pair])
        assert with_gradient[0].requires_grad
        assert with_gradient[0].item() == chosen[i].item()
        assert with_gradient[1].item() == rejected[i].item()


def test_scoring_ignores_dropout_and_leaves_the_mode_as_it_was(tmp_path: Path) -> None:
    model = load_model(model_folder(tmp_path, lambda: llama(dropout=0.5)))
    pairs = read_pairs(pair_records(3), VOCABULARY)
    model.train()
    first, second = score_pairs(model, pairs), score_pairs(model, pairs)
    assert model.training
    assert torch.equal(first[0], second[0])


def test_bfloat16_weights_are_scored_in_float32(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    model = load_model(folder, Dtype.bfloat16).eval()
    batch = pad_right(sequences(3))
    with torch.no_grad():
        logits = model(input_ids=batch.input_ids).logits.double()
        # Only the forward may round to bfloat16; the log-softmax of its logits may not.
        logps = logits.log_softmax(-1).gather(-1, batch.targets.clamp(min=0)[..., None])[..., 0]
        expected = logps.where(batch.targets >= 0, 0.0).sum(1)
        torch.testing.assert_close(response_logps(model, batch), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen_ids": []}, "row 'data:1': chosen_ids is empty"),
        ({"prompt_ids": []}, "row 'data:1': prompt_ids is empty"),
        ({"rejected_ids": [3, VOCABULARY]}, "row 'data:1': rejected_ids has ids from 3 to 64"),
        ({"chosen_ids": None}, "row 'data:1' has no chosen_ids"),
    ],
)
def test_a_record_that_cannot_be_scored_is_refused_by_name(change: dict, message: str) -> None:
    records = pair_records(2)
    records[1].update(change)
    with pytest.raises(ValueError, match=message):
        read_pairs(records, VOCABULARY)


def test_a_folder_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        load_model(tmp_path)
