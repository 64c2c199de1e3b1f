"""Packed attention beside the formula, over every pair of tokens that may see each other."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import gemma2, llama, model_folder
from torch import Tensor, nn

from steps.models.folders import load_model
from steps.scoring import attention
from steps.scoring.attention import attends_packed, packed_attention, use_packed_attention
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.logps import token_logps
from steps.scoring.packing import Pack, make_pack

HEADS, KEY_HEADS, WIDTH = 4, 2, 8


def pack_of(*lengths: tuple[int, ...]) -> Pack:
    """Groups of prompts and responses of these lengths."""
    groups = []
    for number, (prompt, *responses) in enumerate(lengths):
        ids = [TokenResponse(tuple(range(length + 1))) for length in responses]
        groups.append(TokenGroup(str(number), str(number), (1,) * prompt, tuple(ids)))
    return make_pack(groups)


PACK = pack_of((5, 6, 4), (0, 3, 5), (9, 1, 0), (2, 11, 12, 3))


def inputs(pack: Pack) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, as a layer makes them."""
    generator = torch.Generator().manual_seed(7)

    def draw(heads: int) -> Tensor:
        shape = (1, heads, len(pack.input_ids), WIDTH)
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    return draw(HEADS), draw(KEY_HEADS), draw(KEY_HEADS)


def textbook(
    query: Tensor, key: Tensor, value: Tensor, pack: Pack, window: int | None, softcap: float | None
) -> Tensor:
    """Softmax over what each token may see, decided token by token; [1, T, heads, d]."""
    seen = torch.zeros((len(pack.input_ids),) * 2, dtype=torch.bool)
    for segment in pack.segments:
        prefix = range(segment.prefix_start, segment.prefix_stop)
        own = range(segment.start, segment.stop)
        for query_row, key_row in itertools.product(own, (*prefix, *own)):
            distance = (pack.position_ids[query_row] - pack.position_ids[key_row]).item()
            seen[query_row, key_row] = 0 <= distance < (window or len(pack.input_ids))
    key, value = (x.repeat_interleave(HEADS // KEY_HEADS, dim=1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * 0.3
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
    return (weights @ value).transpose(1, 2)


@pytest.mark.parametrize("softcap", [None, 0.5])
@pytest.mark.parametrize("window", [None, 4, 7])
@pytest.mark.parametrize("few", [0, 8, 128])
def test_output_and_gradients_equal_the_formula_s(
    window: int | None, softcap: float | None, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_FEW_KEYS", few)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    ours, theirs = inputs(PACK), inputs(PACK)
    actual, _ = packed_attention(
        nn.Module(), *ours, None, scaling=0.3, pack=PACK, sliding_window=window, softcap=softcap
    )
    expected = textbook(*theirs, PACK, window, softcap)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).double()
    for output in (actual, expected):
        (output * weights).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=1e-12)


def varlen_of_2_13(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    num_splits: int | None = None,
) -> Tensor:
    """What the GPU's kernel computes: each sequence's queries are the last of its keys."""
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert num_splits == 1
    left, right = window_size
    assert right == 0
    outputs = []
    for q_start, q_stop, k_start, k_stop in zip(
        *(offsets.tolist() for offsets in (cu_seq_q, cu_seq_q[1:], cu_seq_k, cu_seq_k[1:])),
        strict=False,
    ):
        assert q_stop - q_start <= max_q
        assert k_stop - k_start <= max_k
        q = query[q_start:q_stop].transpose(0, 1)
        k, v = (
            x[k_start:k_stop].repeat_interleave(HEADS // x.shape[1], dim=1).transpose(0, 1)
            for x in (key, value)
        )
        last = torch.arange(k.shape[1] - q.shape[1], k.shape[1])[:, None]
        column = torch.arange(k.shape[1])
        seen = (column <= last) & ((column >= last - left) | (left < 0))
        scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~seen, -torch.inf)
        outputs.append((scores.softmax(dim=-1) @ v).transpose(0, 1))
    return torch.cat(outputs)


def varlen_of_2_10(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
) -> Tensor:
    assert is_causal
    options: Any = {"scale": WIDTH**-0.5, "enable_gqa": False, "num_splits": 1}
    lengths = (cu_seq_q, cu_seq_k, max_q, max_k)
    return varlen_of_2_13(query, key, value, *lengths, window_size=(-1, 0), **options)


@pytest.mark.parametrize(
    ("kernel", "window"), [(varlen_of_2_13, None), (varlen_of_2_13, 4), (varlen_of_2_10, None)]
)
def test_a_variable_length_kernel_is_told_the_same(
    monkeypatch: pytest.MonkeyPatch, kernel: Any, window: int | None
) -> None:
    # The kernel itself needs a GPU; what it is called with does not.
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    monkeypatch.setattr(attention, "_varlen_fits", lambda *_: True)
    attention._varlen_options.cache_clear()
    q, k, v = inputs(PACK)
    options: Any = {"scaling": 0.3, "pack": PACK, "sliding_window": window}
    actual, _ = packed_attention(nn.Module(), q, k, v, None, **options)
    attention._varlen_options.cache_clear()
    expected = textbook(q, k, v, PACK, window, None)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_group_has_the_bits_that_it_has_alone(window: int | None, dtype: torch.dtype) -> None:
    lengths = (5, 4, 4, 3), (5, 4, 3), (60, 40, 90), (5, 1), (0, 3), (4, 4), (140, 9, 200, 30)
    pack = pack_of(*lengths)
    made = [part.detach().to(dtype).requires_grad_() for part in inputs(pack)]
    weights = torch.randn(1, len(pack.input_ids), HEADS, WIDTH, dtype=dtype)

    def attended(pack: Pack, made: Sequence[Tensor], weights: Tensor) -> list[Tensor]:
        q, k, v = made
        output = packed_attention(nn.Module(), q, k, v, None, pack=pack, sliding_window=window)[0]
        gradients = torch.autograd.grad((output * weights).sum(), made)
        return [output, *(gradient.transpose(1, 2) for gradient in gradients)]

    together, start = attended(pack, made, weights), 0
    for each in lengths:
        alone, stop = pack_of(each), start + sum(each)
        rows = [*range(start, stop), *[start] * (len(alone.input_ids) - sum(each))]
        own = [part.detach()[:, :, rows].requires_grad_() for part in made]
        expected = attended(alone, own, weights[:, rows])
        for part, of_each in zip(together, expected, strict=True):
            assert torch.equal(part[:, start:stop], of_each[:, : sum(each)])
        start = stop


def test_dropout_acts_where_the_model_says_so(tmp_path: Path) -> None:
    model = load_model(model_folder(tmp_path, lambda: llama(dropout=0.5)))
    use_packed_attention(model)

    def hidden(seed: int) -> Tensor:
        torch.manual_seed(seed)
        ids, positions = PACK.input_ids[None], PACK.position_ids[None]
        base = model.base_model
        return base(input_ids=ids, position_ids=positions, pack=PACK).last_hidden_state

    model.train()
    assert torch.equal(hidden(1), hidden(1))
    assert not torch.equal(hidden(1), hidden(2))
    model.eval()
    assert torch.equal(hidden(1), hidden(2))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"is_causal": False}, "is_causal=False"),
        ({"mask": torch.zeros(1)}, "attention_mask"),
    ],
)
def test_what_it_cannot_honour_is_refused(options: dict, named: str) -> None:
    mask = options.pop("mask", None)
    with pytest.raises(ValueError, match=f"packed attention cannot honour {named}"):
        packed_attention(nn.Module(), *inputs(PACK), mask, pack=PACK, **options)


def test_a_forward_without_a_pack_is_refused_and_not_computed_wrongly(tmp_path: Path) -> None:
    model: Any = load_model(model_folder(tmp_path))
    use_packed_attention(model)
    assert attends_packed(model)
    ids = torch.tensor([[1, 2, 3]])
    with pytest.raises(ValueError, match="was called without a pack; for generation"):
        model.generate(ids, max_new_tokens=1)
    model.set_attn_implementation("sdpa")
    assert not attends_packed(model)
    assert model.generate(ids, max_new_tokens=1).shape == (1, 4)


def test_scores_of_a_gemma_are_soft_capped(tmp_path: Path) -> None:
    model: Any = load_model(model_folder(tmp_path, gemma2))
    use_packed_attention(model)
    expected = token_logps(model, PACK)
    for layer in model.base_model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert (token_logps(model, PACK) - expected).abs().max() > 1e-3
