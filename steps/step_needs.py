"""What Temper's steps need: work to scale earlier times by, memory and disk by formula.

Steps name the functions at the end with a text and do not import this module, so it is in no key.
It imports neither torch nor transformers.
"""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import fsspec

from pipeline import File, HubModel
from pipeline.dag.step import as_input
from pipeline.estimate.needs import Call, Made, Needs
from steps.models.config import ActivationCheckpointing, Dtype, Quantization
from steps.shared.accelerators import accelerator
from steps.training.schedule import place, total_steps

_BYTES = {Dtype.float32: 4, Dtype.bfloat16: 2, Dtype.float64: 8}
_ROUNDED = {Quantization.nf4: 4.5 / 8, Quantization.nf4_double: 4.13 / 8}
_PROCESS = 0.5e9
"""Bytes of a process on a CPU that runs a model, without the model."""
_LOGITS = {False: 256e6, True: 2e9}
"""The most bytes of logits and their gradient at a time, on CPUs and on accelerators."""
_A_NAME = 75
"""Bytes of a token in a tokenizer.json: 72 for SmolLM2, 71 for Llama 3, 75 for Qwen 2.5."""


class Model(NamedTuple):
    """The sizes of a decoder. `keys` is the width of a layer's keys; `table` counts the parameters
    of embeddings and head."""

    parameters: float
    hidden: int
    layers: int
    wide: int
    keys: int
    vocabulary: int
    table: int

    def weights(self, dtype: Dtype, rounding: Quantization | None = None) -> float:
        """Bytes of the weights; embeddings and head are not rounded to 4 bits."""
        each = _BYTES[Dtype(dtype)]
        of_body = each if rounding is None else _ROUNDED[rounding]
        return self.table * each + (self.parameters - self.table) * of_body

    def folder(self, dtype: Dtype) -> float:
        """Bytes of its folder with the tokenizer."""
        return self.weights(dtype) + self.vocabulary * _A_NAME


def model_of(config: Mapping[str, Any], weights: float = 0.0) -> Model | None:
    """The model of a config.json with layers of attention and a gated feed-forward block; None for
    other names of sizes. Only `weights`, the bytes of its files, count the parameters of experts.
    """
    text = config.get("text_config", config)
    try:
        hidden, layers = text["hidden_size"], text["num_hidden_layers"]
        wide, vocabulary = text["intermediate_size"], text["vocab_size"]
        heads = text["num_attention_heads"]
    except KeyError:
        return None
    size = text.get("head_dim") or hidden // heads
    keys = size * (text.get("num_key_value_heads") or heads)
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", True))
    table = vocabulary * hidden * (1 if tied else 2)
    layer = 2 * hidden * (size * heads + keys) + 3 * hidden * wide + 2 * hidden
    parameters = layers * layer + hidden + table
    if any("expert" in name for name in text):
        parameters = weights / _BYTES.get(config.get("dtype", config.get("torch_dtype")), 4)
    return Model(parameters, hidden, layers, wide, keys, vocabulary, table) if parameters else None


def _model(call: Call, value: Any) -> Model | None:
    """The model behind an argument; if it does not exist yet, that from which it will come."""
    made, reference = call.made(value), as_input(value)
    if made is not None and (config := made.read("config.json")):
        inside = made.manifest.files_of(made.part).items()
        weights = sum(entry.size for name, entry in inside if name.endswith(".safetensors"))
        return model_of(json.loads(config), weights)
    if reference is not None:
        before = reference.step.arguments
        return _model(call, _first(before, "policy", "init", "model", "teacher", "source", "shape"))
    if isinstance(value, HubModel):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(value.repo, "config.json", revision=value.revision)
        return model_at(Path(cached)) if isinstance(cached, str) else None
    if isinstance(value, File):
        return model_at(Path(fsspec.url_to_fs(value.url)[1]))
    if hasattr(value, "hidden_size"):  # of init_model, with its words
        named = {"num_hidden_layers": value.layers, "num_attention_heads": value.heads}
        sizes = {"intermediate_size": value.feed_forward, "vocab_size": 34}
        return model_of({**vars(value), **named, **sizes})
    return None


def model_at(path: Path) -> Model | None:
    """The model of a local folder, a config.json, or a GGUF file. The gguf library reads all
    tokens of a GGUF file, which takes seconds; the sizes come before them."""
    path = path / "config.json" if path.is_dir() else path
    if path.suffix == ".json":
        return model_of(json.loads(path.read_bytes()))
    with path.open("rb") as file:

        def number(form: str) -> Any:
            return struct.unpack(f"<{form}", file.read(struct.calcsize(form)))[0]

        def text() -> str:
            return file.read(min(number("Q"), 2**20)).decode(errors="replace")

        def value(kind: int) -> Any:
            if kind == 9:
                of, length = number("I"), number("Q")
                return [value(of) for _ in range(length)]
            return text() if kind == 8 else number("BbHhIif?  Qqd"[kind])

        file.seek(16)  # behind the name and version of the format, and the count of tensors
        found: dict[str, Any] = {}
        for _ in range(number("Q")):
            if (name := text()).startswith("tokenizer."):
                break
            found[_GGUF.get(name.partition(".")[2], name)] = value(number("I"))
        return model_of(found)


_GGUF = {
    "embedding_length": "hidden_size", "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size", "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
}  # fmt: skip


def _first(values: Mapping[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _rows(made: Made | None) -> tuple[float | None, float | None]:
    """The number of rows of an artifact, and the mean number of tokens of a row, by its metrics."""
    if made is None:
        return None, None
    metrics: Mapping[str, Any] = made.manifest.metrics
    counts = (count for count in metrics.values() if type(count) is int)
    rows = next(counts, None) if made.part is None else metrics.get(made.part)
    means = {name: of["mean"] for name, of in metrics.get("lengths", {}).items() if of}
    parts = {name: mean for name, mean in means.items() if name != "total"}
    tokens = sum((parts or means).values()) or metrics.get("tokens_per_completion")
    return rows, tokens


def trained_parameters(model: Model, lora: Any) -> float:
    """The number of parameters that are trained."""
    if lora is None:
        return model.parameters
    hidden, wide, keys = model.hidden, model.wide, model.keys
    ends = 4 * hidden + 2 * (hidden + keys) + 3 * (hidden + wide)
    return model.layers * lora.r * ends + (model.table if lora.modules_to_save else 0)


def activations(model: Model, how: ActivationCheckpointing | None) -> float:
    """The activations that a token holds: for a backward, or in a forward alone (None)."""
    hidden, wide, layers = model.hidden, model.wide, model.layers
    whole = 12 * hidden + 4 * wide
    return {
        None: 6 * hidden + 3 * wide,
        ActivationCheckpointing.none: whole * layers,
        ActivationCheckpointing.selective: (7 * hidden + 3 * wide) * layers + whole,
        ActivationCheckpointing.full: hidden * layers + whole,
    }[how]


def _memory(call: Call, model: Model, config: Any, dtype: Dtype, sampling: Any) -> float:
    """Bytes that a process holds on its device: weights; gradients, moments and float32 masters of
    what is trained; all this shared by several devices, which gather two layers or everything at a
    time; activations and logits of a forward; keys and values of all slots; and models beside."""
    each, (devices, of_one) = _BYTES[dtype], (call.hardware.devices, call.hardware.memory)
    lora, is_trained = getattr(config, "lora", None), hasattr(config, "optimizer")
    weights = model.weights(dtype, getattr(lora or config, "quantization", None))
    held, gradient = weights, 0.0
    if is_trained:
        gradient = max(4, each) * trained_parameters(model, lora)
        held += gradient + _state(model, config, dtype)
    if devices > 1:
        gathered = 2 * each * ((model.parameters - model.table) / model.layers + model.table)
        everything = weights + gradient
        gathers = of_one is not None and 4 * everything <= of_one  # as the trainer decides
        if is_trained and (gathers if config.gather_once is None else config.gather_once):
            gathered = everything
        held = held / devices + gathered
    tokens, how = config.tokens_per_forward, getattr(config, "activation_checkpointing", None)
    held += tokens * each * activations(model, how)
    held += min(_LOGITS[devices > 0], 8.0 * tokens * model.vocabulary)
    if sampling is not None:
        of_slot = 2 * model.layers * model.keys * each * sampling.max_new_tokens
        held += sampling.slots * (of_slot + 8 * model.vocabulary) + is_trained * weights
    of_method = getattr(config, "method", None)
    beside = getattr(getattr(config, "loss", None), "needs_divergence", False)
    beside = beside or getattr(of_method, "needs_reference", False)
    held += (beside or getattr(config, "log_kl", False)) * weights
    if getattr(of_method, "needs_teacher", False):
        given = call.arguments.get("teacher")
        of_each = given.values() if isinstance(given, Mapping) else [given]
        teachers = filter(None, (_model(call, each) for each in of_each))
        held += sum(teacher.weights(dtype) for teacher in teachers)
    if (reward := _model(call, call.arguments.get("reward_model"))) is not None:
        held += reward.weights(call.arguments["scoring"].scoring.dtype)
    if not devices:  # and on the host what it writes and sends
        held += _PROCESS + (getattr(config, "lag", -1) + 1) * weights
    return held


def _state(model: Model, config: Any, dtype: Dtype) -> float:
    """Bytes of the optimiser's means, and of float32 masters if the weights have fewer bits."""
    moment = 1 if config.optimizer.eight_bit else max(4, _BYTES[dtype])
    masters = 4 * (config.master_weights and dtype is Dtype.bfloat16)
    return trained_parameters(model, config.lora) * (config.optimizer.means * moment + masters)


def _work(call: Call, config: Any, sampling: Any, model: Model | None) -> dict[str, float]:
    """Tokens times parameters; or rows."""
    given = call.arguments
    rows, tokens = _rows(call.made(_first(given, "tokens", "responses", "rollouts", "prompts")))
    if hasattr(config, "batch_size"):
        steps, later = config.max_steps, getattr(config, "batch_sizes", {})
        if rows:
            steps = total_steps(math.ceil(rows), config.batch_size, config.epochs, steps, later)
        if rows and later:
            epoch, start, _ = place(math.ceil(rows), config.batch_size, steps, later)
            rows = epoch * rows + start
        else:
            rows = steps and steps * min(config.batch_size, rows or math.inf)
    if sampling is not None and "rollouts" not in given:
        asked = getattr(config, "sample_prompts", getattr(config, "prompts", rows))
        several = getattr(config, "completions", getattr(sampling, "num_completions", 1))
        drawn = (asked or 0) * several * given.get("iterations", 1) or None
        if not hasattr(config, "sample_prompts"):
            rows, tokens = drawn, sampling.max_new_tokens
        elif rows and tokens and drawn:  # an evaluation reads all rows, and samples for some
            tokens += min(drawn / rows, several) * sampling.max_new_tokens
    if rows is None:
        return {}
    whole = {"tokens × parameters": rows * tokens * model.parameters} if tokens and model else {}
    return {**whole, "rows": rows}


# --- named by steps ---------------------------------------------------------------------------


def of_model(call: Call) -> Needs:
    """A step that trains a model, scores or samples with it, as its config says."""
    config: Any = call.arguments["config"]
    config = vars(config).get("scoring", config)  # of rewards by a model
    sampling = config if hasattr(config, "slots") else getattr(config, "sampling", None)
    model = _model(call, _first(call.arguments, "policy", "init", "model", "teacher"))
    work = _work(call, config, sampling, model)
    dtype = Dtype(_first({**call.arguments, **vars(config)}, "dtype"))
    is_trained = hasattr(config, "optimizer")
    disk = model.folder(dtype) if is_trained and model is not None else None
    if model is not None and is_trained and config.lora is not None and config.lora.is_alone:
        disk = trained_parameters(model, config.lora) * _BYTES[dtype] + model.vocabulary * _A_NAME
    is_tpu = call.hardware.model.endswith(" chip")
    if model is None or is_tpu or getattr(config, "backend", None) is not None:
        return Needs(work, disk=disk)
    memory, scratch = _memory(call, model, config, dtype, sampling), None
    if is_trained and (config.checkpoint_every_steps or config.checkpoint_every_seconds):
        trained = trained_parameters(model, config.lora)
        checkpoint = _state(model, config, dtype) + trained * _BYTES[dtype]
        scratch = (config.keep_last + 1) * checkpoint
        disk = disk + checkpoint if disk and hasattr(config, "method") else disk  # to go on from
        memory += 0.0 if call.hardware.devices else checkpoint  # the copy that is written
    known = accelerator(call.hardware.model)
    return Needs(work, memory, disk, scratch, known and known.memory)


def writes_model(call: Call) -> Needs:
    """A model folder, without training."""
    model = _model(call, _first(call.arguments, "source", "shape", "model"))
    if model is None:
        return Needs()
    size = model.folder(Dtype(call.arguments.get("dtype", "float32")))
    return Needs({"bytes": size}, _PROCESS + 1.5 * size, size)


def merges_models(call: Call) -> Needs:
    """A model folder from several, tensor by tensor; the table of embeddings is the largest one."""
    given = call.arguments
    model = _model(call, given["models"][0])
    if model is None:
        return Needs()
    read = len(given["models"]) + (given["base"] is not None)
    size = call.size(given["models"][0]) or model.folder(Dtype.float32)
    table = 4.0 * model.vocabulary * model.hidden
    return Needs({"bytes": (read + 1) * size}, _PROCESS + (read + 4) * table, size)


def loads(call: Call) -> Needs:
    """Rows of a source, up to a limit. How many a source of the Hub has is not known, so only a run
    on the same one tells its time."""
    source, most = call.arguments["train"], call.arguments["config"].max_train
    path = Path(fsspec.url_to_fs(source.url)[1]) if isinstance(source, File) else None
    if most is not None:
        return Needs({"rows": most})
    if path is not None and path.is_file():
        return Needs({"bytes": path.stat().st_size})
    return Needs({f"all of {source}"[:200]: 1.0})


def tokenizes(call: Call) -> Needs:
    """Rows, by the bytes of their artifact."""
    size = call.size(next(iter(call.arguments.values())))
    return Needs({} if size is None else {"bytes": size})
