"""A reward model as a Hugging Face folder: a sequence classifier with one label.

    model.safetensors   the body of the language model, and `score.weight` [1, H]
    config.json         architectures: …ForSequenceClassification, one label, pad_token_id
    tokenizer files     those of the language model, with the same padding token

``AutoModelForSequenceClassification`` takes the score at the last token of a row that is not the
padding token. If a response ended with the padding token (some tokenizers pad with the end-of-turn
token), it would silently take the score at another token than in training. So `padding_of`
chooses a padding token that does not end any response.
"""

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils import logging

from steps.data.tokens.rendering import load_bare_tokenizer
from steps.data.vocabularies import has_tokenizer
from steps.models.config import Dtype, Quantization
from steps.models.folders import load_as
from steps.models.value_head import require_no_more, value_head

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HEAD = "score.weight"
_CLASSIFIER = "ForSequenceClassification"


def load_reward_model(
    folder: Path,
    dtype: Dtype,
    on_host: bool = False,
    quantization: Quantization | None = None,
) -> PreTrainedModel:
    """The reward model of a folder, on the same device as `models.folders.load_model` uses.

    Raises:
        ValueError: the folder has no model with one label, or weights are missing.
    """
    model, missing = _load(folder, dtype, on_host, quantization)
    if missing:
        raise ValueError(
            f"{folder} is no reward model: it lacks {', '.join(sorted(missing)[:3])}; train one "
            "with train_reward_model"
        )
    return model


def start_reward_model(
    folder: Path,
    dtype: Dtype,
    on_host: bool = False,
    quantization: Quantization | None = None,
) -> PreTrainedModel:
    """The reward model from which training starts: the body of a language model with a head of
    zeros, whose scores are all 0; or, unchanged, the reward model in the folder.

    Raises:
        ValueError: transformers has no sequence classifier of this architecture, or the folder
            lacks more than the head.
    """
    model, missing = _load(folder, dtype, on_host, quantization)
    if missing - {_HEAD}:
        raise ValueError(f"{folder} lacks {sorted(missing - {_HEAD})[:3]}; import the model again")
    if missing:
        with torch.no_grad():
            value_head(model).weight.zero_()
    return model


def padding_of(folder: Path, ends: Collection[int], named: str | None = None) -> int | None:
    """The id of a padding token for the model of a folder, that does not end any response.

    This is `named`; or else the tokenizer's own padding token; or else another special token,
    preferably one whose name contains "pad"; None if there is none. A folder without a tokenizer
    has the padding token of its config.

    Args:
        ends: the ids of the last tokens of responses.

    Raises:
        ValueError: `named` is not a token, or it ends a response.
    """
    if has_tokenizer(folder):
        return _padding(load_bare_tokenizer(folder), ends, named)
    if named is not None:
        raise ValueError(f"pad_token={named!r} is looked for in a tokenizer, and {folder} has none")
    own = AutoConfig.from_pretrained(folder).get_text_config().pad_token_id
    return None if own in ends else own


def set_padding(folder: Path, chosen: int | None) -> str | None:
    """Set a padding token in the folder's config and tokenizer: what `padding_of` has chosen.

    Without one, the config gets none, and transformers then refuses batches of more than one row.

    Returns:
        A notice for the user if there is no such token, else None.
    """
    if chosen is not None and has_tokenizer(folder):
        tokenizer = load_bare_tokenizer(folder)
        if chosen != tokenizer.pad_token_id:
            _write_padding(folder, tokenizer, chosen)
    config = AutoConfig.from_pretrained(folder)
    config.get_text_config().pad_token_id = chosen
    config.save_pretrained(folder)
    if chosen is not None:
        return None
    return (
        "there is no padding token that ends no response, so the reward model names none, and "
        "transformers scores one response at a time; name a token of the tokenizer with pad_token"
    )


def _load(
    folder: Path, dtype: Dtype, on_host: bool, quantization: Quantization | None
) -> tuple[PreTrainedModel, set[str]]:
    config = AutoConfig.from_pretrained(folder) if (folder / "config.json").is_file() else None
    if config is not None:
        trained = [name for name in config.architectures or () if name.endswith(_CLASSIFIER)]
        if trained and config.num_labels != 1:
            raise ValueError(
                f"{folder} is a {trained[0]} with {config.num_labels} labels; a reward model has 1"
            )
        if type(config) not in AutoModelForSequenceClassification._model_mapping:
            raise ValueError(
                f"transformers has no sequence classifier of the type {config.model_type!r} of "
                f"{folder}; start from a model of another architecture"
            )
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            require_no_more(weights.keys(), folder)
    auto = AutoModelForSequenceClassification
    with _without_report():
        model, missing = load_as(auto, folder, dtype, on_host, quantization, num_labels=1)
    value_head(model)
    return model, missing


def _padding(
    tokenizer: "PreTrainedTokenizerBase", ends: Collection[int], named: str | None
) -> int | None:
    if named is not None:
        chosen = tokenizer.get_vocab().get(named)
        if chosen is None or chosen in ends:
            what = "is no token of the tokenizer" if chosen is None else "ends a response"
            raise ValueError(f"pad_token={named!r} {what}; name another token")
        return chosen
    own = tokenizer.pad_token_id
    if isinstance(own, int) and own not in ends:
        return own
    special = {i: str(t) for i, t in tokenizer.added_tokens_decoder.items() if t.special}
    free = [i for i in special if i not in ends and i != tokenizer.eos_token_id]
    return min(free, key=lambda i: ("pad" not in special[i].lower(), i), default=None)


def _write_padding(folder: Path, tokenizer: "PreTrainedTokenizerBase", chosen: int) -> None:
    token = tokenizer.convert_ids_to_tokens(chosen)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = folder / name
        if file.is_file():
            settings = json.loads(file.read_text("utf-8")) | {"pad_token": token}
            text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
            file.write_text(text, "utf-8")
    if load_bare_tokenizer(folder).pad_token_id != chosen:
        raise ValueError(f"the tokenizer of {folder} cannot be made to pad with {token!r}")


@contextmanager
def _without_report() -> Iterator[None]:
    """Silence warnings of transformers: the new head and the unused language-model head are
    expected."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
