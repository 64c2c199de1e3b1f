"""GGUF files: what was written is read back, and what cannot be said is refused."""

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from steps.export.config import GgufType
from steps.export.gguf_file import write_gguf
from steps.models import importing
from steps.models.config import Dtype
from steps.models.folders import load_model, save_model
from steps.models.importing import import_pretrained

TEXTS = ["the cat sat", " on  the\tmat\n\n42!", "Grüße, 你好 <|im_start|>user", ""]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
}
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2])


def write_model(folder: Path, kind: str = "llama", **settings: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, **{**SIZES, "bos_token_id": 0, "eos_token_id": 1} | settings
    )
    model = AutoModelForCausalLM.from_config(config).float()
    for parameter in model.parameters():
        if parameter.dim() == 1:  # norms of ones and biases of zeros would hide what is left out
            parameter.data += 0.1 * torch.randn_like(parameter)
    save_model(model, folder)
    return model.eval()


def write_tokenizer(folder: Path, splits: Any = GPT2) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splits
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["the cat sat on the mat, and that was that"] * 3, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|im_end|>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return fast


def logits(model: PreTrainedModel) -> torch.Tensor:
    ids = torch.arange(40)[None] * 7 % SIZES["vocab_size"]
    with torch.no_grad():
        return model(ids).logits


def read_back(file: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    ).eval()


def written(folder: Path, kind: str, **settings: Any) -> tuple[PreTrainedModel, Path]:
    """A model, and the float32 file of it."""
    model = write_model(folder / "model", kind, **settings)
    write_tokenizer(folder / "model")
    write_gguf(folder / "model", folder / "model.gguf", GgufType.f32, "tiny")
    return model, folder / "model.gguf"


MODELS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"tie_word_embeddings": False}),
    ("mistral", {"sliding_window": None}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {"head_dim": 128}),
]


@pytest.mark.parametrize(("kind", "settings"), MODELS)
def test_a_float32_file_gives_the_logits_of_the_folder(
    kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    model, file = written(tmp_path, kind, **settings)
    torch.testing.assert_close(logits(read_back(file)), logits(model), atol=2e-5, rtol=1e-5)


def test_a_head_of_its_own_is_written_though_the_config_ties_it(tmp_path: Path) -> None:
    """transformers leaves two different matrices apart, whatever the config says; so does the
    file."""
    folder = tmp_path / "model"
    write_model(folder, tie_word_embeddings=False)
    write_tokenizer(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    write_gguf(folder, tmp_path / "model.gguf", GgufType.f32, "tiny")
    names = {tensor.name for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert "output.weight" in names


@pytest.mark.parametrize(
    ("type", "smaller", "error", "nats"),
    [(GgufType.f16, 0.51, 0.002, 0.02), (GgufType.q8_0, 0.28, 0.03, 0.3)],
)
def test_fewer_bits_give_nearly_the_same_logits_in_a_smaller_file(
    type: GgufType, smaller: float, error: float, nats: float, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model")
    write_tokenizer(tmp_path / "model")
    for each in (GgufType.f32, type):
        write_gguf(tmp_path / "model", tmp_path / f"{each}.gguf", each, "tiny")
    sizes = [sum(t.n_bytes for t in gguf.GGUFReader(tmp_path / f"{each}.gguf").tensors)
             for each in (GgufType.f32, type)]  # fmt: skip
    assert sizes[1] < smaller * sizes[0]
    expected = logits(model)
    found = logits(read_back(tmp_path / f"{type}.gguf"))
    assert 0 < (found - expected).norm() / expected.norm() < error
    assert (found.log_softmax(-1) - expected.log_softmax(-1)).abs().max() < nats


@pytest.mark.parametrize(
    ("type", "value", "told"),
    [
        (GgufType.f16, 7e4, "down_proj.weight has a value of size 7e+04, .* f16 .* as f32"),
        (GgufType.q8_0, -1e7, "down_proj.weight has a value of size 1e+07, .* q8_0 .* as f32"),
        (GgufType.f32, math.nan, "down_proj.weight has values that are infinite or NaN"),
        (GgufType.q8_0, math.inf, "down_proj.weight has values that are infinite or NaN"),
    ],
)
def test_a_value_that_would_be_read_back_as_infinite_is_refused(
    type: GgufType, value: float, told: str, tmp_path: Path
) -> None:
    model: Any = write_model(tmp_path)
    write_tokenizer(tmp_path)
    model.model.layers[0].mlp.down_proj.weight.data[0, 0] = value
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=told.replace("+", r"\+")):
        write_gguf(tmp_path, tmp_path / "model.gguf", type, "tiny")


def test_8_bits_are_within_half_a_level_of_each_block(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    write_tokenizer(tmp_path)
    write_gguf(tmp_path, tmp_path / "model.gguf", GgufType.q8_0, "tiny")
    (down,) = (t for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors
               if t.name == "blk.1.ffn_down.weight")  # fmt: skip
    blocks = np.frombuffer(down.data.tobytes(), np.uint8).reshape(-1, 34)
    scales = blocks[:, :2].copy().view("<f2").astype(np.float64)
    held = scales * blocks[:, 2:].copy().view(np.int8)
    weights = model.state_dict()["model.layers.1.mlp.down_proj.weight"].double().numpy()
    weights = weights.reshape(-1, 32)
    largest = abs(weights).max(1, keepdims=True)
    rounding_of_the_scale = largest * 2.0**-11 + 127 * 2.0**-25
    assert (abs(held - weights) <= largest / 127 / 2 + rounding_of_the_scale).all()


@pytest.mark.parametrize("splits", [GPT2, DIGITS])
def test_the_tokenizer_comes_back_with_its_template(splits: Any, tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    before = write_tokenizer(tmp_path / "model", splits)
    write_gguf(tmp_path / "model", tmp_path / "model.gguf", GgufType.f16, "tiny")
    after = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    assert after.chat_template == TEMPLATE
    assert (after.eos_token, after.bos_token) == (before.eos_token, before.bos_token)
    for text in TEXTS:
        if splits is GPT2:  # transformers takes every name of rules for gpt-2's
            assert after(text)["input_ids"] == before(text)["input_ids"]
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    rules = "gpt-2" if splits is GPT2 else "smollm"
    assert reader.fields["tokenizer.ggml.pre"].contents() == rules
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert tokens[: len(before)] == before.convert_ids_to_tokens(list(range(len(before))))
    assert len(tokens) == SIZES["vocab_size"]
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    assert (types[0], types[100], types[-1]) == (3, 1, 5)  # control, normal, unused


def test_a_changed_rotation_is_written_as_divisors_of_its_frequencies(tmp_path: Path) -> None:
    rotation = {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    }  # fmt: skip
    model = write_model(tmp_path / "model", rope_parameters=rotation)
    write_tokenizer(tmp_path / "model")
    write_gguf(tmp_path / "model", tmp_path / "model.gguf", GgufType.f16, "tiny")
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    divisors = torch.tensor(tensors["rope_freqs.weight"].data.copy())
    plain = 10000.0 ** (-torch.arange(0, 16, 2) / 16)
    torch.testing.assert_close(plain / divisors, model.model.rotary_emb.inv_freq)
    assert divisors.max() == pytest.approx(8.0)
    assert divisors.min() == pytest.approx(1.0)


def written_tokenizer(folder: Path, **changes: Any) -> dict[str, Any]:
    """The metadata of a file, written after attributes of the folder's tokenizer were set."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    tokenizer.save_pretrained(folder)
    write_gguf(folder, folder / "model.gguf", GgufType.q8_0, "tiny")
    fields = gguf.GGUFReader(folder / "model.gguf").fields
    prefix = "tokenizer.ggml."
    return {name.removeprefix(prefix): field.contents() for name, field in fields.items()}


TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_file_ends_answers_where_the_template_and_the_generation_config_do(
    tmp_path: Path,
) -> None:
    """llama.cpp knows the ends of the usual templates by their texts, but not <|turn|>."""
    write_model(tmp_path)
    tokenizer = write_tokenizer(tmp_path)
    tokenizer.add_tokens(["<|turn|>"], special_tokens=True)
    tokenizer.save_pretrained(tmp_path)
    end = tokenizer.convert_tokens_to_ids("<|turn|>")
    GenerationConfig(eos_token_id=[1, 2]).save_pretrained(tmp_path)
    found = written_tokenizer(tmp_path, chat_template=TURNS)
    assert (found["eos_token_id"], found["eot_token_id"], found["eom_token_id"]) == (1, end, 2)


def test_a_file_adds_no_bos_to_chats_whose_template_writes_none(tmp_path: Path) -> None:
    """llama.cpp would add it to chats as well, and training has seen none there."""
    write_model(tmp_path)
    tokenizer = write_tokenizer(tmp_path)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.save_pretrained(tmp_path)
    assert not written_tokenizer(tmp_path, chat_template=TURNS)["add_bos_token"]
    assert written_tokenizer(tmp_path, chat_template="{{ bos_token }}" + TURNS)["add_bos_token"]


LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
ONLY_IN_TENSORS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"rope_parameters": LLAMA_3, "max_position_embeddings": 131072}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("qwen3", {"head_dim": 32}),
]


@pytest.mark.parametrize(("kind", "settings"), ONLY_IN_TENSORS)
def test_an_imported_file_computes_what_its_tensors_say(
    kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """transformers reads biases, changed rotations and the width of Qwen 3's heads from no file."""
    model, file = written(tmp_path, kind, **settings)
    import_pretrained(str(file), tmp_path / "back", Dtype.float32, None)
    torch.testing.assert_close(
        logits(load_model(tmp_path / "back")), logits(model), atol=2e-5, rtol=1e-5
    )


def rewritten(source: Path, file: Path, scaling: str = "", **renamed: str) -> None:
    """Copy a file, with a rotation's scaling, and with parts of its tensors' names replaced."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(file, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[0], field.types[-1] if field.types[1:] else None
            writer.add_key_value(field.name, field.contents(), *kind)
    if scaling:
        writer.add_string("llama.rope.scaling.type", scaling)
        writer.add_float32("llama.rope.scaling.factor", 4.0)
    for tensor in reader.tensors:
        name = tensor.name
        for old, new in renamed.items():
            name = name.replace(old, new)
        writer.add_tensor(name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("settings", "change", "told"),
    [
        ({}, {"scaling": "yarn"}, "its rotary positions are of a kind that is not read"),
        (
            {"attention_bias": True},
            {"attn_output": "attn_extra"},
            "it has biases that transformers would leave out",
        ),
    ],
)
def test_a_file_with_what_transformers_would_leave_out_is_refused(
    settings: dict[str, Any], change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    write_model(tmp_path / "model", **settings)
    write_tokenizer(tmp_path / "model")
    write_gguf(tmp_path / "model", tmp_path / "whole.gguf", GgufType.f32, "tiny")
    rewritten(tmp_path / "whole.gguf", tmp_path / "model.gguf", **change)
    with pytest.raises(ValueError, match=told):
        import_pretrained(str(tmp_path / "model.gguf"), tmp_path / "back", Dtype.float32, None)


def test_the_rotation_of_a_gemma_4_file_is_the_share_that_its_divisors_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its divisors are 1 where the full attention rotates, and 1e30 elsewhere."""
    config = AutoConfig.for_model("gemma4_text")
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: config)
    write = gguf.GGUFWriter(tmp_path / "model.gguf", "gemma4")
    divisors = np.array([1.0] * 32 + [1e30] * 32, dtype=np.float32)
    write.add_tensor("rope_freqs.weight", divisors)
    write.write_header_to_file()
    write.write_kv_data_to_file()
    write.write_tensors_to_file()
    write.close()
    found = importing._config_of_gguf(str(tmp_path / "model.gguf"), {})
    assert found.rope_parameters["full_attention"]["partial_rotary_factor"] == 0.5


def test_equal_folders_give_equal_files(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    write_tokenizer(tmp_path / "model")
    for name in ("one", "other"):
        write_gguf(tmp_path / "model", tmp_path / name, GgufType.q8_0, "tiny")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


@pytest.mark.parametrize(
    ("kind", "settings", "told"),
    [
        ("gpt2", {}, "a gpt2 model cannot be written as GGUF; these can: llama"),
        ("mistral", {"sliding_window": 16}, "sliding_window=16 cannot be written"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu' cannot be written"),
        ("qwen2", {"head_dim": 32}, "head_dim=32 cannot be written"),
        ("qwen3", {"attention_bias": True}, "attention_bias=true of a qwen3 model cannot"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type 'dynamic' of a llama model cannot be written",
        ),
        (
            "qwen2",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type 'linear' of a qwen2 model cannot be written",
        ),
    ],
)
def test_a_model_that_the_file_cannot_hold_is_refused_by_name(
    kind: str, settings: dict[str, Any], told: str, tmp_path: Path
) -> None:
    write_model(tmp_path / "model", kind, **settings)
    write_tokenizer(tmp_path / "model")
    with pytest.raises(ValueError, match=told):
        write_gguf(tmp_path / "model", tmp_path / "model.gguf", GgufType.f16, "tiny")
    assert not (tmp_path / "model.gguf").exists()


def test_the_file_of_a_bfloat16_folder_has_its_values(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    write_tokenizer(tmp_path / "model")
    model = load_model(tmp_path / "model").bfloat16()
    save_model(model, tmp_path / "half", tokenizer_from=tmp_path / "model")
    write_gguf(tmp_path / "half", tmp_path / "model.gguf", GgufType.f32, "tiny")
    torch.testing.assert_close(
        logits(read_back(tmp_path / "model.gguf")),
        logits(load_model(tmp_path / "half")),
        atol=2e-5,
        rtol=1e-5,
    )
