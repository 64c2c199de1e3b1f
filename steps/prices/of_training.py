"""Estimates of steps that train or score: arithmetic, memory of the engine, checkpoints.

A training step runs a forward and backward over every pack of its batch (6 operations for each
parameter and token; 12 for each layer, channel and attended pair of tokens) and updates every
parameter. A device holds weights, gradients, the two moments of AdamW and, for a bfloat16 model,
float32 master weights; the activations of one pack; and the logits of a slice of the pack. Several
devices share the weights, gradients and moments, and divide the packs among them; with
`gather_once` each also holds all weights and gradients during a step. A loss that needs its
reference's distribution runs a forward of the reference, which is a second model unless adapters
alone are trained.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from pipeline.price.estimator import Call, Estimator, Foreseen, Sizes
from steps.models.config import LEAST_INPUT, ActivationCheckpointing, Dtype
from steps.prices.model_sizes import (
    BYTES,
    body,
    folder_bytes,
    of_folder,
    of_reward_model,
    read_body,
    weights_bytes,
)
from steps.prices.of_models import PROCESS, WORKING
from steps.prices.of_rows import tokens_of
from steps.prices.speed import Speed, speed_of
from steps.shared.accelerators import accelerator
from steps.training.schedule import steps_per_epoch, total_steps

_LOGITS = {False: 128e6, True: 1e9}
"""Bytes of logits at a time, on CPUs (False) and on accelerators (True)."""
_BOTH_LOGITS = {False: 2.0**28, True: 2.0**30}
"""The same for policy and reference, with the ratios and a gradient."""
_UPDATE_TRAFFIC = 28.0
"""Bytes of memory traffic of AdamW for each parameter."""
_CHECKED_PACKS = 4
"""Forwards that a run takes to check packed attention before it starts."""
_FEWEST_TOKENS = 32
"""The least number of tokens of a pack."""
_TENSORS = 40.0
"""Tensors of the hidden state's width that a layer reads or writes for each token of a forward."""
_OF_MAGNITUDES = 12.0
"""How often an update reads or writes what a matrix with magnitudes (DoRA) returns, for these."""
_AN_EXAMPLE = 0.4e-3
"""Seconds to lay out one example."""


@dataclass(frozen=True)
class Rows:
    """The number of examples of a step, and the mean numbers of tokens and scored tokens of one."""

    count: float
    tokens: float
    scored: float


def _rows(sizes: Sizes, demonstrations: bool) -> Rows | None:
    if "rows" not in sizes or not tokens_of(sizes):
        return None
    if "chosen" not in sizes:
        return Rows(sizes["rows"], tokens_of(sizes), sizes.get("completion", tokens_of(sizes) / 2))
    if demonstrations:
        return Rows(sizes["rows"], sizes["prompt"] + sizes["chosen"], sizes["chosen"])
    return Rows(sizes["rows"], tokens_of(sizes), sizes["chosen"] + sizes["rejected"])


def _forwards(examples: float, tokens: float, budget: int) -> float:
    """The number of packs for `examples` examples of `tokens` tokens each; packs hold whole
    examples."""
    each = max(1.0, budget // max(tokens, 1.0))
    return math.ceil(examples / each)


def _flops(model: Sizes, rows: Rows) -> float:
    """Operations of a forward over one example. On average, a token attends to half of the
    example."""
    attended = 2 * model["layers"] * model["hidden"] * rows.tokens**2
    head = 2 * model["vocabulary"] * model["hidden"] * rows.scored
    return 2 * read_body(model) * rows.tokens + attended + head


def _activations(model: Sizes, tokens: float, config: Any, itemsize: int) -> float:
    """Bytes of activations that a pack of `tokens` tokens keeps for its backward."""
    hidden, wide, layers = model["hidden"], model["feed_forward"], model["layers"]
    whole = 12 * hidden + 4 * wide + _magnitudes(model, config.lora)
    how = config.activation_checkpointing
    if how is ActivationCheckpointing.selective and tokens * hidden * itemsize < LEAST_INPUT:
        how = ActivationCheckpointing.none
    kept = {
        ActivationCheckpointing.none: whole * layers,
        ActivationCheckpointing.selective: (7 * hidden + 3 * wide) * layers + whole,
        ActivationCheckpointing.full: hidden * layers + whole,
    }[how]
    return tokens * kept * itemsize


def _trained(
    call: Call, init: str, demonstrations: bool = False, rewards: bool = False
) -> Foreseen:
    config: Any = call.arguments["config"]
    model, dtype = call.size(init), Dtype(config.dtype)
    rows = _rows(call.size("tokens"), demonstrations)
    if rewards:  # a score of each response in the place of logits
        model, rows = of_reward_model(model), None if rows is None else replace(rows, scored=2)
    size = folder_bytes(model, dtype)
    sizes = {**model, "bytes": size}
    if size is None:
        return Foreseen()
    if getattr(config, "backend", None) is not None:
        return Foreseen(sizes)
    trained = trained_parameters(model, config)
    checkpoint = checkpoint_bytes(model, config, trained)
    a_step = None if rows is None else replace(rows, count=min(config.batch_size, rows.count))
    memory = update_memory(call, model, config, trained, a_step)
    known, speed = accelerator(call.hardware.model), speed_of(call.hardware)
    capacity = None if known is None else known.memory
    if rows is None or speed is None:
        return Foreseen(sizes, None, memory, (config.keep_last + 1) * checkpoint, capacity)
    steps = total_steps(math.ceil(rows.count), config.batch_size, config.epochs, config.max_steps)
    loop = _loop_seconds(call, speed, model, config, trained, rows, steps, demonstrations)
    checkpoints = _checkpoints(config, steps, call.pace * loop)
    if checkpoints and not call.hardware.devices:
        memory += checkpoint  # a copy, which is written while the next step runs
    seconds = _around_seconds(speed, model, rows, size) + loop
    return Foreseen(sizes, seconds, memory, checkpoints * checkpoint, capacity)


def trained_parameters(model: Sizes, config: Any) -> float:
    """The number of parameters that are trained."""
    if config.lora is None:
        return model["parameters"]
    return _adapters(model, config.lora) + _saved(model, config.lora)


def checkpoint_bytes(model: Sizes, config: Any, trained: float) -> float:
    """The size of a checkpoint: the weights, two moments, and master weights if they differ from
    the weights."""
    weights = trained * (BYTES[Dtype(config.dtype)] + 4 * _has_masters(config))
    return weights + _moments(model, config, trained)


def _checkpoints(config: Any, steps: int, seconds: float) -> int:
    """How many checkpoints of `steps` steps that take `seconds` are on the disk at once. The last
    step has none; the newest one is complete before an older one is removed."""
    saved, before_the_end = 0, steps - 1
    if config.checkpoint_every_steps:
        saved = before_the_end // config.checkpoint_every_steps
    if config.checkpoint_every_seconds:
        seconds *= before_the_end / steps
        saved = max(saved, int(seconds / config.checkpoint_every_seconds))
    return min(saved, before_the_end, config.keep_last + 1)


def _examples(rows: int, batch_size: int, steps: int) -> int:
    """The number of examples of so many steps; the last batch of an epoch may be shorter."""
    epochs, rest = divmod(steps, steps_per_epoch(rows, batch_size))
    return epochs * rows + rest * batch_size


def _around_seconds(speed: Speed, model: Sizes, rows: Rows, size: float) -> float:
    """Seconds before the first step and after the last one."""
    checks = _CHECKED_PACKS * speed.computing(
        _flops(model, rows), model["layers"], 4 * model["parameters"]
    )
    return speed.start + speed.first + speed.files(2 * size) + checks


def _loop_seconds(
    call: Call,
    speed: Speed,
    model: Sizes,
    config: Any,
    trained: float,
    rows: Rows,
    steps: int,
    demonstrations: bool,
) -> float:
    """Seconds of all steps, and of the evaluations of held-out rows between them."""
    batch = replace(rows, count=_examples(math.ceil(rows.count), config.batch_size, steps) / steps)
    seconds = steps * update_seconds(call, speed, model, config, trained, batch)
    held_out = _rows(call.size("held_out"), demonstrations)
    if held_out is None or not config.eval_every_steps:
        return seconds
    evaluations = math.ceil(steps / config.eval_every_steps) * (3 if _is_beside(config) else 1)
    return seconds + evaluations * forward_seconds(call, speed, model, config, held_out)


def update_seconds(
    call: Call, speed: Speed, model: Sizes, config: Any, trained: float, batch: Rows
) -> float:
    """Seconds of an update on the examples of `batch`."""
    devices = max(1, call.hardware.devices)
    forwards = math.ceil(_forwards(batch.count, batch.tokens, config.tokens_per_forward) / devices)
    again = {"full": 4 / 3, "selective": 1.05, "none": 1.0}[str(config.activation_checkpointing)]
    tokens = batch.tokens * batch.count
    backward = 3 * again if config.lora is None else 2 * again
    padded = max(tokens, _FEWEST_TOKENS) / tokens
    work = _flops(model, batch) * backward
    if _is_beside(config):  # its forward, and each head once more
        work += _flops(model, batch) + 4 * model["vocabulary"] * model["hidden"] * batch.scored
    flops = work * batch.count * padded / devices
    traffic = _UPDATE_TRAFFIC * trained / devices
    itemsize = BYTES[Dtype(config.dtype)]
    traffic += 3 * itemsize * model["parameters"] * forwards
    wide = model["layers"] * model["hidden"] * itemsize
    traffic += 3 * _TENSORS * wide * tokens / devices
    weighed = model["layers"] * _magnitudes(model, config.lora) * itemsize
    traffic += _OF_MAGNITUDES * weighed * tokens / devices
    a_step = speed.computing(flops, 5 * forwards * model["layers"], traffic)
    return a_step + _AN_EXAMPLE * batch.count


def update_memory(
    call: Call, model: Sizes, config: Any, trained: float, batch: Rows | None
) -> float:
    """Bytes that an update on the examples of `batch` holds, and a process on a CPU."""
    devices, is_device = max(1, call.hardware.devices), call.hardware.devices > 0
    itemsize = BYTES[Dtype(config.dtype)]
    parameters = model["parameters"]
    masters = 4 * _has_masters(config)
    if devices > 1:  # each holds its share in float32, and the layers in use unsharded
        held = (
            parameters * (itemsize if not masters else 0) + trained * (masters + 4 + 8)
        ) / devices
        held += _unsharded(call, model, config, trained)
    else:
        weights = weights_bytes(model, Dtype(config.dtype), config.quantization)
        if config.quantization is not None:  # the weight in use, as it was before
            weights += itemsize * model["hidden"] * model["feed_forward"]
        moments = _moments(model, config, trained)
        held = weights + trained * (masters + max(4, itemsize)) + moments
    tokens = float(config.tokens_per_forward)
    if batch is not None:
        longest = max(tokens, batch.tokens)  # a longer example gets a forward of its own
        tokens = min(longest, max(_FEWEST_TOKENS, batch.tokens * batch.count))
    scored = tokens if batch is None else tokens * batch.scored / batch.tokens
    logits = scored * model["vocabulary"] * 4
    working = _activations(model, tokens, config, itemsize)
    if _is_beside(config):
        working += min(_BOTH_LOGITS[is_device], 4 * logits)
    else:
        working += 2 * min(_LOGITS[is_device], logits)
    alone = config.lora is not None and not config.lora.modules_to_save
    if _is_beside(config) and not alone:  # and the gradient of the head, to be added
        held += weights_bytes(model, Dtype(config.dtype), config.quantization)
        working += max(4, itemsize) * model["vocabulary"] * model["hidden"]
    if is_device:
        return held + working
    return held + working + _merged(model, config) + PROCESS + WORKING


def _merged(model: Sizes, config: Any) -> float:
    """Bytes of weights that a CPU holds once more at the end of a run with adapters: those that
    adapters are merged into, as the file of the others is still mapped; all, if they are rounded
    while it trains."""
    itemsize = BYTES[Dtype(config.dtype)]
    if config.lora is None:
        return 0.0
    if config.quantization is not None:
        return itemsize * model["parameters"]
    return itemsize * body(model) * _share(config.lora)


def _share(lora: Any) -> float:
    """The share of a layer's seven matrices that have an adapter."""
    return min(len(lora.target_modules) / 7, 1.0) if lora.target_modules else 1.0


def _unsharded(call: Call, model: Sizes, config: Any, trained: float) -> float:
    """Bytes that one of several devices holds whole in the backward: all weights and gradients if
    it gathers them once a step, else those of two layers and of the embeddings and the head."""
    itemsize = BYTES[Dtype(config.dtype)]
    everything = itemsize * model["parameters"] + max(4, itemsize) * trained
    memory = call.hardware.memory
    gathers = config.gather_once
    if gathers is None:  # as the trainer decides
        gathers = memory is not None and 4 * everything <= memory
    if gathers:
        return everything
    ends = model["vocabulary"] * model["hidden"]
    return 2 * itemsize * (body(model) / model["layers"] + ends)


def _is_beside(config: Any) -> bool:
    """Whether the reference computes beside the policy."""
    return getattr(getattr(config, "loss", None), "needs_divergence", False)


def _has_masters(config: Any) -> bool:
    return config.master_weights and Dtype(config.dtype) is Dtype.bfloat16


def _moments(model: Sizes, config: Any, trained: float) -> float:
    """Bytes of AdamW's two moments. With 8 bits each they have a scale for every 256, and those of
    embeddings have 32."""
    if not config.optimizer.eight_bit:
        return 2 * max(4, BYTES[Dtype(config.dtype)]) * trained
    table = model["vocabulary"] * model["hidden"]
    if config.lora is not None:
        table = min(table, _saved(model, config.lora))
    return 8 * table + 2 * (1 + 4 / 256) * (trained - table)


def _adapters(model: Sizes, lora: Any) -> float:
    """The number of parameters of adapters on every matrix except the head."""
    hidden, wide, keys = model["hidden"], model["feed_forward"], model["keys"]
    ends = 4 * hidden + 2 * (hidden + keys) + 3 * (hidden + wide)
    return (lora.r * ends * _share(lora) + _magnitudes(model, lora)) * model["layers"]


def _saved(model: Sizes, lora: Any) -> float:
    """The number of weights of `modules_to_save`, which are taken for embeddings and head."""
    ends = min(len(lora.modules_to_save), 1 if model["tied"] else 2)
    return float(ends * model["vocabulary"] * model["hidden"])


def _magnitudes(model: Sizes, lora: Any) -> float:
    """The number of magnitudes (DoRA) in a layer: the width of what adapted matrices return, which
    is kept for their gradient."""
    if lora is None or not lora.dora:
        return 0.0
    wide = 3 * model["hidden"] + 2 * (model["keys"] + model["feed_forward"])
    return wide * _share(lora)


def _scored(call: Call) -> Foreseen:
    config: Any = call.arguments["config"]
    return scoring(call, call.size("model"), call.size("tokens"), config)


def _rewarded(call: Call) -> Foreseen:
    """Scores by a reward model, of pairs or of completions; those of one prompt share it."""
    config: Any = call.arguments["config"]
    config = getattr(config, "scoring", config)  # of rewards
    rollouts = call.size("rollouts")
    given = scored = call.size("responses") or rollouts
    if "completions" in given:
        prompts = given.get("prompts", given["completions"])
        of_prompt = given.get("completion", 50.0) * given["completions"] / max(prompts, 1)
        scored = {"rows": prompts, "prompt": given.get("prompt", 50.0), "completion": of_prompt}
    foreseen = scoring(call, call.size("model"), scored, config, rewards=True)
    return replace(foreseen, sizes=rollouts) if rollouts else foreseen  # they get one more reward


def scoring(
    call: Call, model: Sizes, tokens: Sizes, config: Any, rewards: bool = False
) -> Foreseen:
    """The estimate of scoring: one forward over each row, without gradients.

    Args:
        rewards: whether there is a score of each response in the place of logits.
    """
    rows, speed = _rows(tokens, demonstrations=False), speed_of(call.hardware)
    if rewards and rows is not None:
        rows = replace(rows, scored=2)
    itemsize = BYTES[Dtype(config.dtype)]
    if "parameters" not in model or config.backend is not None:
        return Foreseen()
    devices, is_device = max(1, call.hardware.devices), call.hardware.devices > 0
    parameters = weights_bytes(model, Dtype(config.dtype), config.quantization)
    held = parameters / devices + (2 * parameters / model["layers"] if devices > 1 else 0.0)
    working = (
        config.tokens_per_forward * itemsize * (6 * model["hidden"] + 3 * model["feed_forward"])
    )
    scored = 0 if rewards else config.tokens_per_forward
    logits = min(_LOGITS[is_device], scored * model["vocabulary"] * 4)
    memory = held + working + logits + (0.0 if is_device else PROCESS + WORKING)
    sizes = {} if rows is None else {"rows": rows.count, "bytes": 3000 + 60 * rows.count}
    if rows is None or speed is None:
        return Foreseen(sizes, None, memory)
    checks = _CHECKED_PACKS * speed.computing(_flops(model, rows), 2 * model["layers"], parameters)
    work = checks + forward_seconds(call, speed, model, config, rows) + _AN_EXAMPLE * rows.count
    return Foreseen(sizes, speed.start + speed.first + speed.files(parameters) + work, memory)


def forward_seconds(call: Call, speed: Speed, model: Sizes, config: Any, rows: Rows) -> float:
    """Seconds of one forward over each row."""
    devices = max(1, call.hardware.devices)
    forwards = math.ceil(_forwards(rows.count, rows.tokens, config.tokens_per_forward) / devices)
    parameters = weights_bytes(model, Dtype(config.dtype), config.quantization)
    flops = _flops(model, rows) * rows.count / devices
    return speed.computing(flops, forwards * model["layers"], forwards * parameters)


def _learns(init: str, **kind: bool) -> Estimator:
    return Estimator(lambda call: _trained(call, init, **kind), of_folder, version=10)


IMITATION = _learns("init", demonstrations=True)
PREFERENCE = _learns("policy")
REWARD = _learns("init", rewards=True)
SCORED = Estimator(_scored, version=7)
REWARDED = Estimator(_rewarded, version=3)
