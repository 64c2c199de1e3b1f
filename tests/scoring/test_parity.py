"""Which models are packed, found by trying; for others it is said that and why they are not."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import oracle
import pytest
import torch
from families import FAMILIES
from tiny_models import VOCABULARY, gemma2, gpt2, llama, model_folder
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    JambaConfig,
    JambaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    StableLmConfig,
    StableLmForCausalLM,
)

from steps.data.images.images_of_rows import ImageOfRow
from steps.models.config import Dtype
from steps.models.folders import load_model, own_attention
from steps.models.ranks import Ranks
from steps.scoring import attention, parity
from steps.scoring.attention import attends_packed
from steps.scoring.config import Attention
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.logps import forward_backward, sequence_logps, token_logps
from steps.scoring.packing import Pack, make_pack
from steps.scoring.parity import check_packing, choose_attention
from steps.scoring.scorer import Scorer

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}


def groups(count: int = 5) -> list[TokenGroup]:
    draw = random.Random(3)

    def ids(longest: int) -> tuple[int, ...]:
        return tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(2, longest)))

    return [
        TokenGroup(f"{i}", f"{i}", ids(20), (TokenResponse(ids(20)), TokenResponse(ids(9))))
        for i in range(count)
    ]


def mamba() -> PreTrainedModel:
    return MambaForCausalLM(
        MambaConfig(vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=2)
    )


def jamba() -> PreTrainedModel:
    """Layers of both kinds."""
    return JambaForCausalLM(
        JambaConfig(
            **SIZES,
            attn_layer_period=2,
            attn_layer_offset=1,
            num_experts=1,
            num_experts_per_tok=1,
            use_mamba_kernels=False,
        )
    )


def keywords_are_not_handed_on() -> PreTrainedModel:
    return StableLmForCausalLM(StableLmConfig(**SIZES))


def rotation_that_depends_on_length() -> PreTrainedModel:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0, 1.0],
        "long_factor": [2.0, 3.0],
        "original_max_position_embeddings": 10,
    }
    config = Phi3Config(
        **SIZES,
        pad_token_id=None,
        max_position_embeddings=64,
        original_max_position_embeddings=10,
        rope_parameters=rope,
    )
    return Phi3ForCausalLM(config)


def attention_of_its_own() -> PreTrainedModel:
    return BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=4))


UNPACKABLE = {
    "own attention": (attention_of_its_own, "BloomForCausalLM has an attention that cannot"),
    "mamba": (mamba, "packed, MambaForCausalLM differs: logps are off by up to"),
    "jamba": (jamba, "packed, JambaForCausalLM differs"),
    "no keywords": (keywords_are_not_handed_on, "does not take packs .*hand on keywords"),
    "rotation by length": (
        rotation_that_depends_on_length,
        "beyond 10 tokens Phi3ForCausalLM turns",
    ),
}

ALONE = {"beyond 10 tokens Phi3ForCausalLM turns"}
"""For these reasons a padded batch is not right either."""


@pytest.fixture(params=UNPACKABLE)
def unpackable(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    build, reason = UNPACKABLE[request.param]
    return model_folder(tmp_path / "model", build), reason


@pytest.mark.parametrize(
    ("family", "dtype"),  # by default each family in one, in long searches in all
    [
        pytest.param(name, dtype, marks=pytest.mark.attack if (row + column) % 3 else ())
        for row, name in enumerate(FAMILIES)
        for column, dtype in enumerate((Dtype.float32, Dtype.float64, Dtype.bfloat16))
    ],
)
def test_transformers_of_every_family_are_packed(tmp_path: Path, family: str, dtype: Dtype) -> None:
    model = load_model(model_folder(tmp_path, FAMILIES[family]), dtype)
    packing = check_packing(model, groups())
    assert packing.attention is Attention.packed
    assert packing.notice is None
    assert attends_packed(model)


def test_others_are_not_and_the_reason_is_given(unpackable: tuple[Path, str]) -> None:
    folder, reason = unpackable
    model = load_model(folder)
    packing = check_packing(model, groups())
    assert packing.attention is Attention.padded
    assert not attends_packed(model)
    assert packing.notice is not None
    reads = "each response is read alone" if reason in ALONE else "responses are read in padded"
    assert packing.notice.startswith(reads)
    assert re.search(reason, packing.notice)


@torch.no_grad()
def test_what_is_not_packed_is_still_right(tmp_path: Path) -> None:
    for number, (build, _) in enumerate(UNPACKABLE.values()):
        model = load_model(model_folder(tmp_path / f"{number}", build)).eval()
        expected = [
            oracle.group_logps(model, g.prompt_ids, [r.ids for r in g.responses]) for g in groups()
        ]
        check_packing(model, groups())
        pack = make_pack(groups())
        actual = sequence_logps(token_logps(model, pack), pack).view(-1, 2)
        torch.testing.assert_close(actual.float(), torch.stack(expected), rtol=0, atol=1e-4)


def test_an_unpacked_model_learns_the_gradient_of_its_own_forward(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, mamba)
    model, slow = load_model(folder).eval(), load_model(folder).eval()
    check_packing(model, groups())
    forward_backward(model, make_pack(groups()), lambda logps, _: (-logps.sums().sum(dim=1), {}))

    logps = [oracle.group_logps(slow, g.prompt_ids, [r.ids for r in g.responses]) for g in groups()]
    for name, gradient in oracle.gradients(slow, -torch.stack(logps).sum()).items():
        actual = model.get_parameter(name).grad
        torch.testing.assert_close(actual, gradient, rtol=1e-3, atol=1e-3)


def test_packing_that_was_asked_for_is_not_given_up_in_silence(
    unpackable: tuple[Path, str],
) -> None:
    folder, reason = unpackable
    with pytest.raises(ValueError, match=f"cannot be packed: .*{reason}.*set attention=padded"):
        check_packing(load_model(folder), groups(), Attention.packed)


@pytest.mark.parametrize("change", ["window", "neighbour"])
def test_a_mistake_in_the_attention_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    builds: dict[str, Callable[[], PreTrainedModel]] = {
        "window": FAMILIES["mistral"],
        "neighbour": llama,
    }
    model = load_model(model_folder(tmp_path, builds[change]))
    original = attention.Reach.sees

    def mistaken(reach: attention.Reach, last: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        if change == "window":
            wider = None if reach.window is None else reach.window + 1
            return original(attention.Reach(wider), last, key)
        return torch.ones_like(last + key, dtype=torch.bool)

    monkeypatch.setattr(attention.Reach, "sees", mistaken)
    assert check_packing(model, groups()).attention is Attention.padded


def test_a_group_that_sees_its_neighbour_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one group alone nothing could be seen."""

    def leaking(groups: Sequence[TokenGroup]) -> Pack:
        pack = make_pack(groups)
        segments = [
            s._replace(prefix_start=0, prefix_stop=4)
            if s.start and s.prefix_start == s.prefix_stop
            else s
            for s in pack.segments
        ]
        return replace(pack, segments=tuple(segments))

    monkeypatch.setattr(parity, "make_pack", leaking)
    model = load_model(model_folder(tmp_path))
    assert check_packing(model, groups()).attention is Attention.padded


def test_more_tokens_than_a_model_has_positions_for_are_refused_by_row(tmp_path: Path) -> None:
    model = load_model(model_folder(tmp_path, gpt2))
    fits = TokenGroup("fits", "a", (3,) * 60, (TokenResponse((4,) * 5),))
    long = TokenGroup("long", "b", (3,) * 60, (TokenResponse((4,) * 6),))
    assert check_packing(model, [fits]).attention is Attention.packed
    with pytest.raises(ValueError, match="row 'long' has 65 tokens to read, but GPT2LMHeadModel"):
        check_packing(model, [fits, long])


def test_rows_with_images_are_refused_on_several_ranks() -> None:
    seen = [replace(group, images=(cast("ImageOfRow", None),)) for group in groups(2)]
    scorer = Scorer(llama(), 64)
    with pytest.raises(ValueError, match="images are read on one device; use one rank"):
        choose_attention(scorer, seen, Attention.auto, Ranks(0, 2))


def test_a_model_reads_with_sdpa_unless_it_has_none_or_sdpa_would_leave_out_a_soft_cap() -> None:
    without = llama()
    without._supports_sdpa = False
    assert [own_attention(model) for model in (llama(), without)] == ["sdpa", "eager"]
    assert own_attention(gemma2()) == "eager"
