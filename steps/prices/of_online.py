"""Estimates of online training: in every iteration, the policy samples and then trains.

Beside what training holds, the process holds the sampling model with its keys and values, and the
reference and the reward model if there are such. On the host it holds a copy of the policy's
weights, and with a `lag` one more for each iteration of it; checkpoints hold those of the lag too.
"""

import json
import math
from dataclasses import replace
from typing import Any

from pipeline.price.estimator import Call, Estimator, Foreseen, Made, Sizes
from steps.generation.config import SamplingConfig
from steps.models.config import Dtype
from steps.prices.model_sizes import BYTES, folder_bytes, of_config
from steps.prices.of_generation import drawing_seconds, engine_memory
from steps.prices.of_training import (
    Rows,
    checkpoint_bytes,
    forward_seconds,
    trained_parameters,
    update_memory,
    update_seconds,
)
from steps.prices.speed import speed_of

_A_COMPLETION = 120.0
"""Bytes of a completion in a recording, without its tokens; a token has two log-probabilities."""
_A_TOKEN = 20.0


def _online(call: Call) -> Foreseen:
    config: Any = call.arguments["config"]
    model, dtype = call.size("policy"), Dtype(config.dtype)
    size = folder_bytes(model, dtype)
    if size is None:
        return Foreseen()
    trained, weights = trained_parameters(model, config), model["parameters"] * BYTES[dtype]
    scratch = checkpoint_bytes(model, config, trained) + config.lag * weights
    tokens = config.prompts * config.completions * config.max_new_tokens
    drawn = config.prompts * config.completions * _A_COMPLETION + tokens * _A_TOKEN
    drawn *= call.arguments["iterations"]
    prompts = call.arguments["iterations"] * config.prompts
    rollouts = {"prompts": prompts, "completions": prompts * config.completions}
    parts = {"model": {**model, "bytes": size}, "rollouts": rollouts}
    sizes = {"parts": parts, "bytes": size + scratch + drawn}
    seconds = _seconds(call, model, size, call.arguments["iterations"], samples=True)
    memory = _memory(call, model, weights, samples=True)
    return Foreseen(sizes, seconds, memory, scratch + drawn)


def _replayed(call: Call) -> Foreseen:
    """Training on rollouts that exist."""
    config: Any = call.arguments["config"]
    model, dtype = call.size("policy"), Dtype(config.dtype)
    size, prompts = folder_bytes(model, dtype), call.size("rollouts").get("prompts")
    if size is None:
        return Foreseen()
    weights = model["parameters"] * BYTES[dtype]
    scratch = checkpoint_bytes(model, config, trained_parameters(model, config))
    sizes = {"parts": {"model": {**model, "bytes": size}}, "bytes": size + scratch}
    memory = _memory(call, model, weights, samples=False)
    if prompts is None:
        return Foreseen(sizes, None, memory, scratch)
    iterations = math.ceil(prompts / config.prompts)
    seconds = _seconds(call, model, size, iterations, samples=False)
    return Foreseen(sizes, seconds, memory, scratch)


def _update(call: Call) -> Rows:
    """The examples of one update, if all completions are as long as they may be."""
    config: Any = call.arguments["config"]
    completions = config.completions * config.max_new_tokens
    tokens = call.size("prompts").get("prompt", 50.0) + completions
    return Rows(config.prompts / config.minibatches, tokens, completions)


def _sampling(config: Any) -> SamplingConfig:
    return SamplingConfig(
        max_new_tokens=config.max_new_tokens,
        temperature=1.0,
        num_completions=config.completions,
        slots=min(config.slots, config.prompts * config.completions),
    )


def _memory(call: Call, model: Sizes, weights: float, samples: bool) -> float:
    config: Any = call.arguments["config"]
    prompt = call.size("prompts").get("prompt", 50.0)
    training = update_memory(call, model, config, trained_parameters(model, config), _update(call))
    engine = engine_memory(model, _sampling(config), prompt, BYTES[Dtype(config.dtype)])
    reference = weights if config.method.needs_reference else 0.0
    rewarding = call.size("reward_model").get("parameters", 0.0)
    if rewarding:
        rewarding *= BYTES[Dtype(call.arguments["scoring"].scoring.dtype)]
    on_host = 0.0 if call.hardware.devices else (config.lag + 1) * weights
    return training + reference + rewarding + (engine + on_host if samples else 0.0)


def _seconds(call: Call, model: Sizes, size: float, iterations: int, samples: bool) -> float | None:
    config: Any = call.arguments["config"]
    speed = speed_of(call.hardware)
    if speed is None:
        return None
    prompt, itemsize = call.size("prompts").get("prompt", 50.0), BYTES[Dtype(config.dtype)]
    trained, batch = trained_parameters(model, config), _update(call)
    updates = config.inner_epochs * config.minibatches
    drawing = drawing_seconds(speed, model, config.prompts, prompt, _sampling(config), itemsize)
    training = updates * update_seconds(call, speed, model, config, trained, batch)
    if config.method.needs_reference:
        scored = replace(batch, count=config.prompts)
        training += update_seconds(call, speed, model, config, trained, scored) / 3
    each = drawing + training if samples else training
    if "parameters" in (rewarding := call.size("reward_model")):
        drawn, scoring = replace(batch, count=config.prompts, scored=2), call.arguments["scoring"]
        each += forward_seconds(call, speed, rewarding, scoring.scoring, drawn)
    return speed.start + speed.first + speed.files(2 * size) + iterations * each


def _of_run(made: Made) -> Sizes:
    """The sizes of the model in a run that is done."""
    config = json.loads(made.read("model/config.json") or b"{}")
    size = sum(e.size for name, e in made.manifest.files.items() if name.startswith("model/"))
    return {"parts": {"model": {**of_config(config), "bytes": size}}} if config else {}


ONLINE = Estimator(_online, _of_run, version=6)
REPLAYED = Estimator(_replayed, _of_run)
