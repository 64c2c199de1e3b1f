"""Images of a pack: what a model makes of them, in place of the embeddings of their placeholders.

A model that sees has a tower that turns images into features, one for each placeholder among the
tokens. They are put among the embeddings of a pack, once for each prompt, so that packs and padded
batches read them as they read words; `parity` compares that with the model's own forward, which is
given the images themselves. The images of each prompt go through the tower by themselves, so what
a group gets does not depend on its neighbours.
"""

import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.data.images.placeholders import load_processor
from steps.scoring.packing import Pack
from steps.shared.execution_detail import execution_detail

if TYPE_CHECKING:
    from steps.data.images.images_of_rows import ImageOfRow

_KINDS = ("mm_token_type_ids", "token_type_ids")
"""What a model may be given that says which tokens stand for images. Those of Gemma 3 and others
attend to all of their image, also to what follows them."""
_OF_TEXT = frozenset({"input_ids", "attention_mask", *_KINDS})


def with_features(model: PreTrainedModel, pack: Pack, embeddings: Tensor) -> Tensor:
    """The embeddings [1, T, H] of a pack, those of placeholders replaced by features of images.

    Raises:
        ValueError: the tokens have placeholders for more features, or for fewer.
    """
    token = _placeholder(model)
    if token is None:
        if pack.images:
            raise ValueError(f"the rows have images, and {type(model).__name__} sees none")
        return embeddings
    places = pack.input_ids == token
    features = [_features(model, images) for images in _by_prompt(pack)]
    count = sum(map(len, features))
    if count != int(places.sum()):
        raise ValueError(_unequal(int(places.sum()), count))
    if not features:
        return embeddings
    seen = torch.cat(features).to(embeddings.dtype)
    return embeddings.masked_scatter(places[None, :, None].expand_as(embeddings), seen)


def seen_or_ids(model: PreTrainedModel, pack: Pack) -> dict[str, Tensor]:
    """What the base model is given, with a graph behind it: ids, or with images embeddings.

    Raises:
        ValueError: as `with_features`.
    """
    if not pack.images:
        require_no_placeholders(model, pack.input_ids)
        return {"input_ids": pack.input_ids[None]}
    embeddings: Any = model.get_input_embeddings()
    return {"inputs_embeds": with_features(model, pack, embeddings(pack.input_ids[None]))}


def inputs_of(
    model: PreTrainedModel, images: "Sequence[ImageOfRow]", input_ids: Tensor
) -> dict[str, Any]:
    """What the model's own forward is given besides the ids [1, L] of a sequence with images."""
    if not images:
        require_no_placeholders(model, input_ids)
        return {}
    found, token = dict(_processed(model, images)), _placeholder(model)
    taken = () if token is None else inspect.signature(model.forward).parameters
    return found | {name: (input_ids == token).int() for name in _KINDS if name in taken}


def require_no_placeholders(model: PreTrainedModel, ids: Tensor) -> None:
    """Raise ValueError for tokens that stand for images where there are none."""
    token = _placeholder(model)
    if token is not None and (count := int((ids == token).sum())):
        raise ValueError(_unequal(count, 0))


def _placeholder(model: PreTrainedModel) -> int | None:
    return getattr(model.config, "image_token_id", None)


def _by_prompt(pack: Pack) -> list[tuple["ImageOfRow", ...]]:
    """The images of each prompt that has some, once however many responses it has."""
    found = {
        span.prompt_start: images
        for span, images in zip(pack.responses, pack.images, strict=False)
        if images
    }
    return [images for _, images in sorted(found.items())]


def _features(model: PreTrainedModel, images: "Sequence[ImageOfRow]") -> Tensor:
    """The features of images, [placeholders, H]."""
    _see_by_itself(model)
    seeing: Any = model
    made = seeing.get_image_features(**_processed(model, images), return_dict=True).pooler_output
    return made.flatten(0, -2) if isinstance(made, Tensor) else torch.cat(list(made))


def _see_by_itself(model: PreTrainedModel) -> None:
    """Gives the tower an attention of its own, where that of packs was set for all of a model."""
    packed = (model.config, model.config.get_text_config())
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and all(module.config is not c for c in packed):
            module.config._attn_implementation = "sdpa" if module._supports_sdpa else "eager"


def _processed(model: PreTrainedModel, images: "Sequence[ImageOfRow]") -> Mapping[str, Tensor]:
    """What the processor of the model's folder makes of images, on the model's device."""
    processor = _processor(Path(str(model.name_or_path)))
    made = processor(
        text=[processor.image_token * len(images)],
        images=[[image.pixels() for image in images]],
        return_tensors="pt",
    )
    taken = {name: value.to(model.device) for name, value in made.items() if name not in _OF_TEXT}
    return {
        name: value.to(model.dtype) if value.is_floating_point() else value
        for name, value in taken.items()
    }


@lru_cache(maxsize=4)
def _processor(folder: Path) -> Any:
    return load_processor(folder)


@execution_detail
def _unequal(places: int, features: int) -> str:
    return (
        f"the tokens have {places} placeholders of images, and the model makes {features} features "
        "of the rows' images: tokenise with this model's own processor, and hand its rows to a "
        "step that reads images"
    )
