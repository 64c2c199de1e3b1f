"""However a model is read, packed, in padded batches or alone, it gives what its own forward gives,
and what cannot be read right is refused by name."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import model_folder
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_sliding_window_causal_mask

from benchmarks.architectures import (
    HELD_OUT,
    TRAINING,
    examined,
    pairs,
    tiny,
)
from steps.losses.simpo import Simpo
from steps.models.config import Dtype
from steps.models.folders import load_model
from steps.models.workplace import Workplace
from steps.scoring import parity
from steps.scoring.architectures.pack_layouts import Layout, layout_of, plan_forwards
from steps.scoring.attention import Reach, packed_attention
from steps.scoring.config import Attention, ReferenceConfig
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.logps import token_logps
from steps.scoring.packing import make_pack, plan_batches
from steps.scoring.parity import check_packing, choose_attention
from steps.scoring.reference import run_reference
from steps.scoring.scorer import Scorer
from steps.training.config import ReferenceFreeConfig
from steps.training.recipes import run_reference_free

SWEPT = {
    Layout.packed: "llama qwen2_moe phimoe gpt_oss mimo_v2_flash llama4_text gemma3n_text ctrl",
    Layout.batched: "qwen3_next qwen3_5_text lfm2 falcon_h1 jamba bamba granitemoehybrid bloom mpt "
    "falcon gptj gpt_neo stablelm nemotron mamba2 recurrent_gemma rwkv",
    Layout.alone: "modernbert-decoder",
}


_ALIKE = {
    "phimoe", "mimo_v2_flash", "ctrl", "qwen3_5_text", "jamba", "bamba", "granitemoehybrid",
    "falcon", "gpt_neo", "gptj", "nemotron", "stablelm", "recurrent_gemma", "qwen2_moe",
    "falcon_h1", "mpt", "gpt_neox",
}  # fmt: skip
"""Relatives of the others, for long searches."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("architecture", "layout"),
    [
        pytest.param(name, layout, marks=pytest.mark.attack if name in _ALIKE else ())
        for layout, names in SWEPT.items()
        for name in names.split()
    ],
)
def test_an_architecture_is_read_as_fast_as_it_can_be_and_right(
    architecture: str, layout: Layout
) -> None:
    found = examined(architecture)
    assert found.result is layout
    assert not found.is_wrong, found
    assert (found.why is None) == (layout is Layout.packed)


# --- what depends on length ---------------------------------------------------------------------

# The longest sequence is neither in the largest pack nor in the smallest.
ORIGINAL = Reach.sees
APART = pairs([(4, 20, 20), (30, 6, 1), (2, 3, 3)])


def own_logps(model: PreTrainedModel, groups: list[TokenGroup]) -> Tensor:
    """By the model's own forward of each sequence alone."""
    found = []
    for group in groups:
        for response in group.responses:
            ids = torch.tensor([*group.prompt_ids, *response.ids])
            logps = model(input_ids=ids[None], use_cache=False).logits[0].log_softmax(-1)
            first = len(group.prompt_ids)
            found.append(logps[first - 1 : -1].gather(1, ids[first:, None])[:, 0])
    return torch.cat(found)


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["qwen2_moe", "phimoe", "mistral"])
def test_a_window_that_only_the_config_names_is_kept_in_every_pack(architecture: str) -> None:
    model = tiny(architecture, sliding_window=32)
    groups = pairs([(2, 30, 29), (20, 14, 2), (2, 3, 3)])
    expected = own_logps(model, groups)
    assert check_packing(model, groups).layout is Layout.packed
    torch.testing.assert_close(token_logps(model, make_pack(groups)), expected, rtol=1e-6, atol=0)


@torch.no_grad()
def test_values_are_compared_of_the_longest_sequence_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where masks show nothing, an attention that does not do what it was told does."""
    model = tiny("mistral", sliding_window=30)
    assert [group.longest_sequence for group in APART] == [23, 35, 4]
    assert [group.packed_tokens for group in APART] == [42, 35, 6]
    assert check_packing(model, APART).layout is Layout.packed
    monkeypatch.setattr(parity, "mask_fault", lambda *_: None)
    monkeypatch.setattr(Reach, "sees", lambda reach, *a: ORIGINAL(Reach(reach.window + 1), *a))
    packing = check_packing(model, APART)
    assert packing.layout is Layout.batched
    assert packing.why_not is not None
    assert "packed, MistralForCausalLM differs" in packing.why_not


@torch.no_grad()
def test_a_layer_that_masks_otherwise_than_it_says_is_found_even_where_values_hide_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By one token, in bfloat16."""

    def mistaken(config: Any, **others: Any) -> Any:
        config = copy.copy(config)
        config.sliding_window -= 1
        return create_sliding_window_causal_mask(config, **others)

    module = "transformers.models.phimoe.modeling_phimoe"
    monkeypatch.setattr(f"{module}.create_sliding_window_causal_mask", mistaken)
    model: Any = tiny("phimoe", sliding_window=33)
    model.to(torch.bfloat16)
    packing = check_packing(model, pairs([(2, 32, 2), (2, 3, 3)]))
    assert packing.attention is Attention.padded
    assert packing.why_not is not None
    assert "layer 0 masks otherwise" in packing.why_not
    assert "a window of 33" in packing.why_not


def test_a_reach_says_which_tokens_are_seen() -> None:
    cpu = torch.device("cpu")
    for reach in (Reach(), Reach(window=3), Reach(chunk=4), Reach(window=2, chunk=4)):
        seen = reach.mask(5, 9, cpu)
        for row, last in enumerate(range(4, 9)):
            for key in range(9):
                expected = key <= last
                expected &= reach.window is None or last - key < reach.window
                expected &= reach.chunk is None or key // reach.chunk == last // reach.chunk
                assert seen[row, key] == expected
    assert Reach(window=9).covers(9)
    assert not Reach(chunk=8).covers(9)


def long_rope() -> PreTrainedModel:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0, 3.0, 4.0, 5.0],
        "original_max_position_embeddings": 40,
    }
    return tiny("phi3", rope_parameters=rope, original_max_position_embeddings=40).float()


def test_packs_are_not_longer_than_those_that_llama_4_reads_as_single_sequences() -> None:
    """Its layers without rotations scale a query by its place in a forward. That is 1 in the few
    examples that are compared, and more at the end of a pack of many."""
    every = 4 * TRAINING
    limit = sum(group.packed_tokens for group in TRAINING)
    model = tiny(
        "llama4_text", attn_temperature_tuning=True, floor_scale=limit, no_rope_layers=[0, 1]
    )
    scorer = Scorer(model, limit - 1)
    assert choose_attention(scorer, every, Attention.auto).layout is Layout.packed
    scorer = Scorer(model, 10 * limit)
    with pytest.warns(UserWarning, match=f"from {limit} tokens on .* by its place in a forward"):
        assert choose_attention(scorer, every, Attention.auto).layout is Layout.batched
    found = torch.cat(scorer.logps(scorer.prepare(every)).result().tokens)
    alone = [parity.own_logps(model, make_pack([group])) for group in every]
    torch.testing.assert_close(found, torch.cat(alone))
    known = check_packing(model, every, is_known=True, tokens_per_forward=10 * limit)
    assert known.layout is Layout.batched


def test_a_rotation_that_grows_with_its_sequence_forgets_longer_ones(tmp_path: Path) -> None:
    """transformers keeps the angles of the longest sequence so far, so that logps would depend on
    what was read before, and on where a run was interrupted. The angles are those of a whole
    response, its last token too."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}

    def fresh() -> PreTrainedModel:
        return tiny("llama", rope_parameters=rope, max_position_embeddings=16)

    model, every = fresh(), [*TRAINING, *HELD_OUT]
    with pytest.warns(UserWarning, match="beyond 16 tokens"):
        packing = choose_attention(Scorer(model, 64), every, Attention.auto)
    assert packing.layout is Layout.alone
    for group in reversed(every):
        pack = make_pack([group])
        found = token_logps(model, pack)
        assert torch.equal(found, token_logps(fresh(), pack))
        forgetful = torch.cat(
            [
                own_logps(fresh(), [replace(group, responses=(response,))])
                for response in group.responses
            ]
        )
        torch.testing.assert_close(found, forgetful.to(found.dtype), rtol=1e-5, atol=1e-5)


def simpo(folder: Path, work: Path, held_out: list[TokenGroup], **settings: Any) -> dict:
    config = ReferenceFreeConfig(loss=Simpo(), max_steps=1, eval_every_steps=1, **settings)
    place = Workplace(work / "out", work / "scratch")
    return run_reference_free(folder, rows(TRAINING), config, place, held_out=rows(held_out))


def rows(groups: list[TokenGroup]) -> list[dict[str, Any]]:
    return [
        {
            "row": group.row,
            "pair_id": f"{group.prompt_ids}{group.responses}",
            "prompt_ids": list(group.prompt_ids),
            "chosen_ids": list(group.responses[0].ids),
            "rejected_ids": list(group.responses[1].ids),
        }
        for group in groups
    ]


@pytest.mark.filterwarnings("ignore")
def test_held_out_rows_that_are_longer_than_all_others_are_evaluated_right(tmp_path: Path) -> None:
    """Beyond 40 tokens every position of a forward is turned otherwise, the short row's in the same
    pack too."""
    folder = model_folder(tmp_path / "model", long_rope)
    frozen = {"lora": None, "batch_size": 6, "dtype": Dtype.float64}
    summary = simpo(folder, tmp_path, HELD_OUT, **frozen)
    model = load_model(tmp_path / "out", Dtype.float64)
    with torch.no_grad():
        logps = own_logps(model, HELD_OUT).split(
            [len(r.ids) for g in HELD_OUT for r in g.responses]
        )
    expected = sum(float(part.sum()) for part in logps[::2]) / 2
    assert summary["final"]["eval_logps/chosen"] == pytest.approx(expected, rel=1e-6)
    assert "the longest sequence has 47" in summary["notices"][0]


def test_a_held_out_row_beyond_a_model_s_positions_is_named_before_training(tmp_path: Path) -> None:
    folder = model_folder(
        tmp_path / "model", lambda: tiny("gpt2", max_position_embeddings=64).float()
    )
    long = TokenGroup("held:7", "x", (3,) * 60, (TokenResponse((4,) * 9), TokenResponse((5,) * 3)))
    with pytest.raises(ValueError, match=r"row 'held:7' has 68 tokens to read, .* made for 64"):
        simpo(folder, tmp_path, [long])
    assert not (tmp_path / "scratch").exists()


# --- models that are not causal -----------------------------------------------------------------


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wanted", list(Attention))
@pytest.mark.parametrize("architecture", ["bert", "xlnet"])
def test_a_model_that_sees_later_tokens_is_refused(architecture: str, wanted: Attention) -> None:
    settings = {"is_decoder": False} if architecture == "bert" else {}
    model = tiny(architecture, **settings)
    with pytest.raises(ValueError, match=r"is not causal: .*of row '0'.*is_decoder=true"):
        check_packing(model, HELD_OUT, wanted)


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("seen", ["the next token", "all tokens"])
def test_a_part_beside_the_attention_that_looks_ahead_is_found(seen: str, count: int) -> None:
    model = tiny("llama")

    def look_ahead(layer: nn.Module, inputs: Any, hidden: Tensor) -> Tensor:
        later = hidden.mean(dim=1, keepdim=True)
        if seen == "the next token":
            later = torch.cat([hidden[:, 1:], torch.zeros_like(later)], dim=1)
        return hidden + 0.1 * later

    model.get_submodule("model.layers.0.mlp").register_forward_hook(look_ahead)
    with pytest.raises(ValueError, match="is not causal"):
        check_packing(model, HELD_OUT[:count])


# --- attention sinks ----------------------------------------------------------------------------


@pytest.mark.parametrize("softcap", [None, 0.7])
def test_a_sink_takes_its_share_of_every_token_s_attention(softcap: float | None) -> None:
    pack = make_pack(pairs([(3, 4, 2), (2, 1, 3)]))
    tokens, heads = len(pack.input_ids), 4
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    leaves = [draw(1, heads, tokens, 8), draw(1, 2, tokens, 8), draw(1, 2, tokens, 8), draw(heads)]
    weights, gradients = draw(1, tokens, heads, 8), []
    computations: list[Any] = [_packed, _textbook]
    for compute in computations:
        inputs = [leaf.clone().requires_grad_() for leaf in leaves]
        out = compute(*inputs, pack, softcap)
        (out * weights).sum().backward()
        gradients.append([out.detach(), *(leaf.grad for leaf in inputs)])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def _packed(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, pack: Any, softcap: Any) -> Tensor:
    options: Any = {"scaling": 0.3, "pack": pack, "s_aux": sinks, "softcap": softcap}
    return packed_attention(nn.Module(), q, k, v, None, sliding_window=4, **options)[0]


def _textbook(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, pack: Any, softcap: Any) -> Tensor:
    out = []
    for segment in pack.segments:
        keys = [
            *range(segment.prefix_start, segment.prefix_stop),
            *range(segment.start, segment.stop),
        ]
        for row in range(segment.start, segment.stop):
            seen = [key for key in keys if key <= row][-4:]
            heads = []
            for head in range(4):
                scores = k[0, head // 2, seen] @ q[0, head, row] * 0.3
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                shares = torch.cat([scores, sinks[head, None]]).softmax(0)[:-1]
                heads.append(shares @ v[0, head // 2, seen])
            out.append(torch.stack(heads))
    return torch.stack(out)[None]


# --- padded batches -----------------------------------------------------------------------------


def test_a_batch_stays_within_its_tokens_padding_counted_and_holds_every_group_once() -> None:
    groups = [*TRAINING, *HELD_OUT]
    for budget in (1, 60, 100, 10**6):
        plan = plan_batches(groups, budget)
        assert sorted(i for batch in plan for i in batch) == list(range(len(groups)))
        for batch in plan:
            longest = max(groups[i].longest_sequence for i in batch)
            assert len(batch) == 1 or 2 * len(batch) * longest <= budget
    assert len(plan_batches(groups, 1)) == len(groups)
    assert plan_batches(groups, 10**6) == [list(range(len(groups)))]


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
def test_a_recurrent_model_reads_several_responses_in_one_forward() -> None:
    model: Any = tiny("qwen3_5_text")
    packing = check_packing(model, TRAINING)
    assert (packing.attention, packing.layout) == (Attention.padded, Layout.batched)
    assert packing.notice is not None
    assert "read in padded batches" in packing.notice
    expected, forwards = own_logps(model, TRAINING), []
    model.base_model.register_forward_pre_hook(
        lambda *call: forwards.append(call[2]["inputs_embeds"].shape[:2]), with_kwargs=True
    )
    logps = token_logps(model, make_pack(TRAINING))
    assert forwards == [(12, 32)]
    torch.testing.assert_close(logps, expected, rtol=1e-6, atol=0)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
def test_a_batch_that_is_not_right_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that begin at the padding, say."""
    model: Any = tiny("lfm2")
    forward = model.base_model.forward

    def mistaken(*args: Any, **kwargs: Any) -> Any:
        embeddings = kwargs.get("inputs_embeds")
        if embeddings is not None and len(embeddings) > 1:
            kwargs["position_ids"] = torch.arange(embeddings.shape[1])[None] * 2
        return forward(*args, **kwargs)

    monkeypatch.setattr(model.base_model, "forward", mistaken)
    packing = check_packing(model, TRAINING)
    assert packing.layout is layout_of(model) is Layout.alone
    assert packing.notice is not None
    assert "in batches, Lfm2ForCausalLM differs" in packing.notice
    assert plan_forwards(Layout.alone, TRAINING, 10**6) == [[i] for i in range(len(TRAINING))]


@pytest.mark.filterwarnings("ignore")
def test_a_reference_of_a_hybrid_is_what_each_response_has_alone(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", lambda: tiny("jamba").float())
    means = []
    for budget in (1, 100, 4096):
        place = Workplace(tmp_path / f"{budget}", tmp_path / f"{budget}s")
        found = run_reference(
            folder, rows(TRAINING), ReferenceConfig(tokens_per_forward=budget), place
        )
        means.append(found["logps/chosen"])
        assert "read in padded batches" in found["notices"][0]
    assert means == pytest.approx([means[0]] * 3, rel=1e-6)
