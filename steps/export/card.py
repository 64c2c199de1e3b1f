"""The model card of an exported model: its sources, training, results and use.

Hubs read the front matter, so it names a base model and data sets only if their names are Hub
names. The text, for people, identifies the model's sources by the digests of their contents. A
missing value is shown as "–".
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from steps.losses.base import Loss
from steps.shared.execution_detail import is_detail
from steps.shared.markdown import as_code, as_text
from steps.training.config import PreferenceConfig, TrainConfig

HERE = 'model = "."  # this folder, or its name on a Hub'
"""The snippet's line that names the model. Replace the path by the repository after an upload."""
NONE = "–"
SAMPLES_SHOWN = 4
_LONGEST_SAMPLE = 400
_ON_A_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_GAIN, _P = "gain/", "/p"
_USAGE = """```python
from transformers import pipeline

{here}
chat = pipeline("text-generation", model=model)
messages = [{{"role": "user", "content": {prompt}}}]
answer = chat(messages, max_new_tokens=128, do_sample=False)
print(answer[0]["generated_text"][-1]["content"])
```
"""
_USAGE_OF_ADAPTERS = """```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

{here}
base = AutoModelForCausalLM.from_pretrained({base})
adapted = PeftModel.from_pretrained(base, model)
```
"""


@dataclass(frozen=True)
class ModelCard:
    """The card's content besides results.

    Args:
        base_model, data: names for display.
        sft: the settings of SFT; without it, the card tells of none.
        dpo: the settings of preference training; without it, the card tells of none.
        license: the licence of the base model's weights.
    """

    title: str
    base_model: str
    data: str
    sft: TrainConfig | None = None
    dpo: PreferenceConfig | None = None
    license: str | None = None


@dataclass(frozen=True)
class Ancestor:
    """A source of a model, or its evaluation: the step that made it, and the content's digest."""

    role: str
    step: str
    digest: str


@dataclass(frozen=True)
class Sample:
    """A held-out prompt with the answers before and after training; ``before`` may be missing."""

    prompt: str
    before: str | None
    after: str


def render_card(
    card: ModelCard,
    results: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    lineage: Sequence[Ancestor] = (),
    samples: Sequence[Sample] = (),
    curves: str | None = None,
    made_with: Mapping[str, str] | None = None,
    adapters_alone: bool = False,
) -> str:
    """Render the card as Markdown with front matter.

    Args:
        results: the metrics of the model's evaluation.
        before: the metrics of the model from which preference training started.
        curves: the name of the image file with the training curves.
        made_with: versions and hardware, by name.
        adapters_alone: whether the folder contains only the weights of adapters.
    """
    prompt = samples[0].prompt if samples else "What is the capital of France?"
    sections = [
        _front_matter(card, adapters_alone),
        f"# {as_text(card.title)}\n",
        f"{as_code(card.base_model)}, {_training(card)}.\n",
        "## Use\n",
        _usage(card, prompt, adapters_alone),
        "## Results on held-out pairs\n",
        _table(("metric", "before", "after", "change", "p"), _results(results, before or {})),
        "In brackets: 95 % intervals. The change is that of the same rows, before and after.\n",
    ]
    if samples:
        rows = (
            (_cut(s.prompt), NONE if s.before is None else _cut(s.before), _cut(s.after))
            for s in samples[:SAMPLES_SHOWN]
        )
        sections += ["## What it writes\n", _table(("prompt", "before", "after"), rows)]
    if curves:
        sections += ["## Training\n", f"![Curves of preference training]({curves})\n"]
    configs = {"sft": card.sft, "dpo": card.dpo}
    settings = [row for name, c in configs.items() if c is not None for row in _settings(c, name)]
    if settings:
        sections += ["## Configuration\n", _table(("setting", "value"), settings)]
    if made_with:
        sections += ["## Made with\n", _table(("what", "version"), made_with.items())]
    if lineage:
        rows = ((one.role, one.step, one.digest) for one in lineage)
        sections += ["## Lineage\n", _table(("what", "made by the step", "content"), rows)]
    if card.license:
        under = as_code(card.license)
        sections.append(f"The weights it was made from are under the licence {under}.\n")
    return "\n".join(sections)


def _training(card: ModelCard) -> str:
    data = as_code(card.data)
    loss = "" if card.dpo is None else f", minimising the loss `{card.dpo.loss.name}`"
    if card.sft is None:
        return f"trained on {'' if card.dpo is None else 'the preference pairs of '}{data}{loss}"
    if card.dpo is None:
        return f"trained on the responses of {data} (SFT)"
    return (
        f"fine-tuned on the chosen responses of {data} (SFT) and then on its preference pairs{loss}"
    )


def _front_matter(card: ModelCard, adapters_alone: bool) -> str:
    """The YAML front matter. Names are JSON strings, which are valid YAML for any characters."""
    lines = [f"library_name: {'peft' if adapters_alone else 'transformers'}"]
    if _ON_A_HUB.fullmatch(card.base_model):
        relation = "adapter" if adapters_alone else "finetune"
        lines += [f"base_model: {json.dumps(card.base_model)}", f"base_model_relation: {relation}"]
    if names := [name for name in card.data.split(" + ") if _ON_A_HUB.fullmatch(name)]:
        lines += ["datasets:", *(f"- {json.dumps(name)}" for name in names)]
    lines.append("pipeline_tag: text-generation")
    if card.license:
        lines.append(f"license: {json.dumps(card.license)}")
    configs = [config for config in (card.sft, card.dpo) if config is not None]
    tags = ["temper", *(["sft"] if card.sft else []), *([card.dpo.loss.name] if card.dpo else [])]
    tags = dict.fromkeys([*tags, *(["lora"] if any(config.lora for config in configs) else [])])
    return "\n".join(["---", *lines, "tags:", *(f"- {tag}" for tag in tags), "---\n"])


def _usage(card: ModelCard, prompt: str, adapters_alone: bool) -> str:
    """A snippet of Python. An ASCII-only JSON string is also a Python literal."""
    if adapters_alone:
        return _USAGE_OF_ADAPTERS.format(here=HERE, base=json.dumps(card.base_model))
    return _USAGE.format(here=HERE, prompt=json.dumps(prompt).replace("`", "\\u0060"))


def _results(results: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row for each metric: name, before, after, change and p."""
    gains = {name.removeprefix(_GAIN): name for name in results if name.startswith(_GAIN)}
    shown = {name: name.removeprefix("eval_") for name in results if not name.startswith(_GAIN)}
    only = {f"eval_{gain}": gain for gain in gains if not gain.endswith(_P)}
    only = {name: gain for name, gain in only.items() if gain not in shown.values()}
    for name, gain in {**shown, **only}.items():
        cells = (
            _number(_existing(before, name)),
            _number(_existing(results, name)),
            _number(results.get(f"{_GAIN}{gain}")),
            _number(results.get(f"{_GAIN}{gain}{_P}")),
        )
        if any(cell != NONE for cell in cells):
            yield name, *cells


def _existing(results: Mapping[str, Any], name: str) -> Any:
    """A metric, or None for metrics of rewards in an evaluation without a loss, which defines no
    rewards."""
    has_rewards = "eval_loss" in results
    return results.get(name) if has_rewards or not name.startswith("eval_rewards/") else None


def _number(value: Any) -> str:
    """A metric as text, with its interval if it has one. That of a single observation has no width,
    and is none."""
    if isinstance(value, Mapping) and {"value", "low", "high"} <= value.keys():
        if value["low"] == value["high"]:
            return _number(value["value"])
        return f"{value['value']:.4g} ({value['low']:.4g} to {value['high']:.4g})"
    return f"{value:.4g}" if isinstance(value, int | float) else NONE


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SAMPLE else f"{text[: _LONGEST_SAMPLE - 1]}…"


def _settings(config: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """All settings that have a value, except execution details, which cannot change the result."""
    for setting in fields(config):
        value = getattr(config, setting.name)
        if isinstance(value, Loss):
            yield f"{prefix}.{setting.name}", value.name
        if is_dataclass(value):
            yield from _settings(value, f"{prefix}.{setting.name}")
        elif not is_detail(setting) and value is not None and value != []:
            yield f"{prefix}.{setting.name}", str(value)


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    escaped = (tuple(map(as_text, row)) for row in rows)
    lines = [headings, tuple("---" for _ in headings), *escaped]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
