"""The backends that experiments offer, by name.

No backend's settings are in this module: a step that was given one of them would depend on all.
"""

from collections.abc import Mapping

from steps.functional_backend.functional_choice import FunctionalTraining
from steps.jax_backend.config import JaxScoring, JaxTraining
from steps.jax_backend.torchax_engine.torchax_choice import TorchaxTraining
from steps.models.config import ADAPTERS
from steps.tinker_backend.tinker_choice import TinkerTraining

_TRAINING: Mapping[str, type] = {
    b.name: b for b in (JaxTraining, FunctionalTraining, TorchaxTraining, TinkerTraining)
}
_SCORING: Mapping[str, type] = {JaxScoring.name: JaxScoring}


def training_choices(*configs: str) -> dict[str, Mapping[str, type]]:
    """The choices of an experiment's training configs with these names, for ``main``.

    They are adapters (``dpo/lora=lora``) and backends (``dpo/backend=jax``). Without them, torch
    trains all weights.
    """
    return {
        f"{config}.{choice}": options
        for config in configs
        for choice, options in (("lora", ADAPTERS), ("backend", _TRAINING))
    }


def scoring_choices(*configs: str) -> dict[str, Mapping[str, type]]:
    """The same for configs that only score: backends (``evaluate/backend=jax``)."""
    return {f"{config}.backend": _SCORING for config in configs}
