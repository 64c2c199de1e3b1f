"""Models that no pack can show an image as their own forward sees it: tokens of an image attend to
all of it (Gemma 3), or have positions in a plane (Qwen2-VL)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import SIZES
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ForSequenceClassification,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from steps.data.images.images_of_rows import ImageOfRow
from steps.reward_models.head_scores import VALUES
from steps.scoring.architectures import images
from steps.scoring.architectures.pack_layouts import Layout
from steps.scoring.examples import TokenGroup, TokenResponse, as_whole
from steps.scoring.logps import token_logps
from steps.scoring.packing import make_pack
from steps.scoring.parity import check_packing

IMAGE = 3
PROMPT = (9, 4, *[IMAGE] * 4, 5, 12, 30)


def gemma(kind: Any = Gemma3ForConditionalGeneration, **settings: Any) -> Any:
    torch.manual_seed(0)
    tower: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = Gemma3Config(
        text_config={**SIZES, "head_dim": 4, "query_pre_attn_scalar": 4, "sliding_window": 5},
        vision_config={**tower, "num_hidden_layers": 1, "image_size": 16, "patch_size": 4},
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
        **settings,
    )
    model = kind(config).eval()
    for parameter in model.parameters():
        if not parameter.any():  # the projection of what the tower sees
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def qwen() -> Any:
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 0]}
    tower = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "patch_size": 4}
    config = Qwen2VLConfig(
        text_config={**SIZES, "rope_parameters": rope},
        vision_config=tower,
        image_token_id=IMAGE,
        vision_start_token_id=4,
    )
    return Qwen2VLForConditionalGeneration(config).eval()


SEEN = {
    "gemma": (gemma, {"pixel_values": torch.ones(1, 3, 16, 16)}, "token_type_ids"),
    "qwen": (
        qwen,
        {
            "pixel_values": torch.linspace(-1, 1, 16 * 96).view(16, 96),
            "image_grid_thw": torch.tensor([[1, 4, 4]]),
        },
        "mm_token_type_ids",
    ),
}
"""What a model's processor makes of an image, and what it calls the kinds of tokens."""


@torch.no_grad()
@pytest.mark.parametrize("name", SEEN)
def test_images_are_read_as_the_processor_of_a_model_has_them_read(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The model is packed where rows have no images."""
    build, image, of_kinds = SEEN[name]
    model = build()
    monkeypatch.setattr(images, "_processed", lambda *_: image)
    responses = (TokenResponse((20, 21, 22)), TokenResponse((40, 41)))
    row = TokenGroup("row", "row", PROMPT, responses, images=(ImageOfRow(Path("/"), "0"),))
    expected = []
    for response in responses:
        ids = torch.tensor([[*PROMPT, *response.ids]])
        logits = model(input_ids=ids, **image, **{of_kinds: (ids == IMAGE).int()}).logits[0]
        logps = logits[len(PROMPT) - 1 : -1].log_softmax(-1)
        expected.append(logps.gather(1, torch.tensor(response.ids)[:, None])[:, 0])
    assert check_packing(model, [row]).layout is Layout.alone
    found = token_logps(model, make_pack([row]))
    torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=1e-5)
    blind = TokenGroup("row", "row", (9, 4, 12), responses)
    assert check_packing(model, [blind]).layout is Layout.packed


@torch.no_grad()
def test_a_reward_model_refuses_images_which_it_is_not_given() -> None:
    """It took their placeholders for words."""
    model = gemma(Gemma3ForSequenceClassification, num_labels=1)
    responses = (TokenResponse((20, 21, 22)), TokenResponse((40, 41)))
    row = as_whole(TokenGroup("row", "row", PROMPT, responses))
    with pytest.raises(ValueError, match="the tokens have 4 placeholders of images"):
        check_packing(model, [row], probe=VALUES.probe)
