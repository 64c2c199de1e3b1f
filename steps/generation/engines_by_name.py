"""Engines by name, for those who choose one in a config: an experiment hands them to ``main``."""

from collections.abc import Mapping

from steps.generation.engine_config import EngineConfig, OwnEngine
from steps.generation.remote.vllm_config import Vllm

ENGINES: Mapping[str, type[EngineConfig]] = {engine.name: engine for engine in (OwnEngine, Vllm)}
