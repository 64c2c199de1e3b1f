"""The model card of an exported model: what it is made from, how, and how it did."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from steps.markdown import as_code, as_text
from steps.training.config import PreferenceConfig, TrainConfig
from steps.training.losses.base import Loss

_FRONT_MATTER = """---
library_name: transformers
pipeline_tag: text-generation
{license}tags:
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
    license: str | None = None


@dataclass(frozen=True)
class Ancestor:
    """What a model was made from or judged by: the step that made it, and its content's digest."""

    role: str
    step: str
    digest: str


def render_card(
    card: ModelCard,
    results: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    lineage: Sequence[Ancestor] = (),
) -> str:
    """Markdown with front matter, naming data, configuration, lineage and held-out results.

    Args:
        before: the results of the model that preference training began from.
    """
    license = f"license: {json.dumps(card.license)}\n" if card.license else ""
    sections = [
        _FRONT_MATTER.format(loss=card.dpo.loss.name, license=license),
        f"# {as_text(card.title)}\n",
        f"{as_code(card.base_model)}, fine-tuned on the chosen responses of {as_code(card.data)} "
        "(SFT) and then "
        f"on its preference pairs, minimising the loss `{card.dpo.loss.name}`.\n",
        "## Results on held-out pairs\n",
        _table(("metric", "before", "after", "95 % interval"), _results(results, before or {})),
        "## Configuration\n",
        _table(("setting", "value"), [*_settings(card.sft, "sft"), *_settings(card.dpo, "dpo")]),
    ]
    if lineage:
        rows = ((one.role, one.step, one.digest) for one in lineage)
        sections += ["## Lineage\n", _table(("what", "made by the step", "content"), rows)]
    if card.license:
        under = as_code(card.license)
        sections.append(f"The weights it was made from are under the licence {under}.\n")
    return "\n".join(sections)


def _results(results: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in results.items():
        number, interval = _number(value)
        if number:
            yield name, _number(before.get(name))[0], number, interval


def _number(value: Any) -> tuple[str, str]:
    """A metric and its interval; empty where there is none."""
    if isinstance(value, Mapping) and {"value", "low", "high"} <= value.keys():
        return f"{value['value']:.4g}", f"{value['low']:.4g} to {value['high']:.4g}"
    return (f"{value:.4g}", "") if isinstance(value, int | float) else ("", "")


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
    escaped = (tuple(map(as_text, row)) for row in rows)
    lines = [headings, tuple("---" for _ in headings), *escaped]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
