"""The model card of an exported model: what it is made from, how, and how it did."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from steps.training.config import PreferenceConfig, TrainConfig
from steps.training.losses.base import Loss

_FRONT_MATTER = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- {loss}
- temper
---
"""


@dataclass(frozen=True)
class ModelCard:
    """What the card says besides the results; ``base_model`` and ``data`` are names, for people."""

    title: str
    base_model: str
    data: str
    sft: TrainConfig = field(default_factory=TrainConfig)
    dpo: PreferenceConfig = field(default_factory=PreferenceConfig)


def render_card(card: ModelCard, results: Mapping[str, Any]) -> str:
    """Markdown with front matter, naming data, configuration and held-out results."""
    sections = [
        _FRONT_MATTER.format(loss=card.dpo.loss.name),
        f"# {card.title}\n",
        f"`{card.base_model}`, fine-tuned on the chosen responses of `{card.data}` (SFT) and then "
        f"on its preference pairs, minimising the loss `{card.dpo.loss.name}`.\n",
        "## Results on held-out pairs\n",
        _table(("metric", "value", "95 % interval"), _results(results)),
        "## Configuration\n",
        _table(("setting", "value"), [*_settings(card.sft, "sft"), *_settings(card.dpo, "dpo")]),
    ]
    return "\n".join(sections)


def _results(results: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in results.items():
        if isinstance(value, Mapping) and {"value", "low", "high"} <= value.keys():
            yield name, f"{value['value']:.4g}", f"{value['low']:.4g} to {value['high']:.4g}"
        elif isinstance(value, int | float):
            yield name, f"{value:.4g}", ""


def _settings(config: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Every setting that bears on the result; how the run was carried out is left out."""
    for setting in fields(config):
        value = getattr(config, setting.name)
        if isinstance(value, Loss):
            yield f"{prefix}.{setting.name}", value.name
        if is_dataclass(value):
            yield from _settings(value, f"{prefix}.{setting.name}")
        elif setting.metadata.get("identity", True):
            yield f"{prefix}.{setting.name}", str(value)


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
