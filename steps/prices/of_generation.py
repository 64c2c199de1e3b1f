"""Estimates of steps that generate: each token takes a forward, for many sequences at a time."""

import math
from typing import Any

from pipeline.price.estimator import Call, Estimator, Foreseen, Made, Sizes
from steps.models.config import Dtype
from steps.prices.model_sizes import BYTES, read_body
from steps.prices.of_models import PROCESS, WORKING
from steps.prices.of_rows import START_BARE, TOKENIZER
from steps.prices.of_training import scoring
from steps.prices.speed import Speed, speed_of

_CALLS = 3.0
"""The ratio of a layer's overhead in a decoding step to that in a packed forward, because of the
cache."""
_TOKENIZED = 0.2
"""Seconds to tokenise the prompts."""
_TRIED = 100.0
"""Passes over all weights in the checks that choose an engine."""
_TRIED_ONCE = 12.0
"""The same in a step that samples only once."""
_JUDGING = 0.075e9
"""Bytes of a process that judges completions; it uses no library."""
_SCORES_READ = 0.5e6
"""Bytes of a reward model's scores that are evaluated per second, with intervals."""
_START_JUDGING, _JUDGING_ROLLOUTS = 0.6, 0.19e9
"""Seconds until a step judges rollouts, in other processes, and its bytes."""
_LOADED_AGAIN = 0.4
"""The share of freed weights whose memory a process keeps."""


def _writing(
    speed: Speed,
    model: Sizes,
    prompts: float,
    prompt: float,
    sampling: Any,
    itemsize: int,
    tried: float = _TRIED,
) -> float:
    """Seconds of a step to choose an engine and generate; see `drawing_seconds`."""
    checks = speed.computing(0.0, 0.0, tried * itemsize * model["parameters"])
    drawing = drawing_seconds(speed, model, prompts, prompt, sampling, itemsize)
    return _TOKENIZED + checks + drawing


def drawing_seconds(
    speed: Speed, model: Sizes, prompts: float, prompt: float, sampling: Any, itemsize: int
) -> float:
    """Seconds to generate for `prompts` prompts of `prompt` tokens each."""
    sequences = prompts * sampling.num_completions
    rounds = math.ceil(sequences / sampling.slots) * sampling.max_new_tokens
    slots = min(sequences, sampling.slots)
    a_token = 2 * read_body(model) + 2 * model["vocabulary"] * model["hidden"]
    read = speed.computing(2 * read_body(model) * prompt * prompts)
    each = speed.computing(
        a_token * slots, _CALLS * model["layers"], itemsize * model["parameters"]
    )
    return read + rounds * each


def _memory(call: Call, model: Sizes, sampling: Any, prompt: float, itemsize: int) -> float:
    of_process = 0.0 if call.hardware.devices else PROCESS + WORKING
    return of_process + engine_memory(model, sampling, prompt, itemsize)


def engine_memory(model: Sizes, sampling: Any, prompt: float, itemsize: int) -> float:
    """Bytes of weights, keys and values of all slots, and logits."""
    held = 2 * model["layers"] * model["keys"] * itemsize * (prompt + sampling.max_new_tokens)
    logits = sampling.slots * model["vocabulary"] * 4 * 2
    return itemsize * model["parameters"] + sampling.slots * held + logits


def _sampled(call: Call) -> Foreseen:
    model, asked = call.size("model"), call.size("prompts")
    sampling: Any = call.arguments["config"]
    speed, itemsize = speed_of(call.hardware), BYTES[Dtype(call.arguments["dtype"])]
    if "parameters" not in model or "rows" not in asked:
        return Foreseen()
    prompt = asked.get("prompt", 50.0)
    memory = _memory(call, model, sampling, prompt, itemsize)
    completions = asked["rows"] * sampling.num_completions
    text = completions * (20 + 2.0 * sampling.max_new_tokens) + 150 * asked["rows"]
    sizes = {
        "prompts": asked["rows"],
        "completions": completions,
        "prompt": prompt,
        "completion": sampling.max_new_tokens,
        "bytes": text,
    }
    if speed is None:
        return Foreseen(sizes, None, memory)
    writing = _writing(speed, model, asked["rows"], prompt, sampling, itemsize)
    return Foreseen(sizes, speed.start + speed.first + writing, memory)


def _of_completions(made: Made) -> Sizes:
    metrics = made.manifest.metrics
    sizes = {name: metrics[name] for name in ("prompts", "completions")}
    mean = metrics.get("tokens_per_completion")
    return sizes if mean is None else {**sizes, "completion": mean}


def _evaluated(call: Call) -> Foreseen:
    config: Any = call.arguments["config"]
    model, tokens = call.size("model"), call.size("tokens")
    scored = scoring(call, model, tokens, config.scoring())
    speed, itemsize = speed_of(call.hardware), BYTES[Dtype(config.dtype)]
    if "rows" not in tokens or scored.memory is None:
        return scored
    prompt, prompts = tokens.get("prompt", 50.0), min(config.sample_prompts, tokens["rows"])
    devices, weights = max(1, call.hardware.devices), itemsize * model["parameters"]
    memory = scored.memory
    engine = engine_memory(model, config.sampling, prompt, itemsize) if prompts else 0.0
    if prompts and devices > 1:  # generation loads a copy of the model
        memory = max(memory, engine) + _LOADED_AGAIN * weights / devices
    elif prompts:  # the model that has scored samples
        tokenizer = 0.0 if call.hardware.devices else TOKENIZER * model["vocabulary"]
        memory += engine - weights + tokenizer
    size = 3500 + 60 * tokens["rows"] + prompts * (300 + 5 * config.sampling.max_new_tokens)
    if scored.seconds is None or speed is None:
        return Foreseen({"bytes": size}, None, memory)
    seconds = scored.seconds
    if prompts:
        again = speed.files(weights) if devices > 1 else 0.0
        sampling, each = config.sampling, prompts / devices
        seconds += again + _writing(speed, model, each, prompt, sampling, itemsize, _TRIED_ONCE)
    return Foreseen({"bytes": size}, seconds, memory)


def _diverged(call: Call) -> Foreseen:
    """Sampling, and then the scores of two models, one after the other."""
    config: Any = call.arguments["config"]
    model, tokens, sampling = call.size("model"), call.size("tokens"), config.sampling
    speed, itemsize = speed_of(call.hardware), BYTES[Dtype(config.dtype)]
    if "parameters" not in model or "rows" not in tokens or speed is None:
        return Foreseen()
    prompt, prompts = tokens.get("prompt", 50.0), min(config.prompts, tokens["rows"])
    completions = prompts * sampling.num_completions
    drawn = {"rows": completions, "prompt": prompt, "completion": sampling.max_new_tokens}
    scored = scoring(call, model, drawn, config)
    if scored.seconds is None or scored.memory is None:
        return Foreseen()
    writing = _writing(speed, model, prompts, prompt, sampling, itemsize, _TRIED_ONCE)
    memory = max(scored.memory, _memory(call, model, sampling, prompt, itemsize))
    return Foreseen({"bytes": 100.0 * completions}, 2 * scored.seconds + writing, memory)


def _judged(call: Call) -> Foreseen:
    completions = call.size("completions").get("completions")
    if completions is None:
        return Foreseen()
    return Foreseen({"bytes": 90.0 * completions}, START_BARE + completions / 2e4, _JUDGING)


def _evaluated_rewards(call: Call) -> Foreseen:
    scores = [call.size(argument).get("bytes", 0.0) for argument in ("pairs", "completions")]
    if not scores[0]:
        return Foreseen()
    return Foreseen({"bytes": 5e3}, START_BARE + sum(scores) / _SCORES_READ, _JUDGING)


def _judged_rollouts(call: Call) -> Foreseen:
    """The rollouts again, with verdicts."""
    given = call.size("rollouts")
    if "completions" not in given:
        return Foreseen()
    sizes = {**given, "bytes": given["bytes"] + 10.0 * given["completions"]}
    return Foreseen(sizes, _START_JUDGING + given["completions"] / 2e4, _JUDGING_ROLLOUTS)


SAMPLED = Estimator(_sampled, _of_completions, version=5)
EVALUATED = Estimator(_evaluated, version=7)
DIVERGED = Estimator(_diverged, version=3)
JUDGED = Estimator(_judged, version=3)
EVALUATED_REWARDS = Estimator(_evaluated_rewards)
JUDGED_ROLLOUTS = Estimator(
    _judged_rollouts, lambda made: {"completions": made.manifest.metrics["completions"]}
)
