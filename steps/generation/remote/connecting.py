"""Replaces the engine of this process by engine processes of our own, if the results stay the same.

This is checked at the start. Everything that affects the bits (dtype, device, threads, versions)
must be equal in both processes. Both must also sample the same ids and logps, to the bit, for a few
prompts.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from transformers import PreTrainedModel

from steps.generation.choosing import EngineChoice
from steps.generation.engine import Engine, Request
from steps.generation.remote.calling import Caller
from steps.generation.remote.engine_server import bears_on_bits
from steps.generation.remote.own_engine import OwnEngineClient
from steps.generation.remote.syncing import (
    Probe,
    SyncedEngines,
    probe_requests,
    scoring_with,
)

TOKEN = "TEMPER_ENGINE_TOKEN"
"""The environment variable that has the token of engine processes."""
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


def connected(
    addresses: Sequence[str],
    patience: float,
    here: EngineChoice,
    model: PreTrainedModel,
    requests: Sequence[Request],
    weights: str,
) -> EngineChoice:
    """The engines at some addresses, to be used instead of the engine of this process.

    Args:
        patience: the seconds without a reply after which an engine counts as hung.
        here: the engine of this process, with the weights of `model`.

    Raises:
        ValueError: an engine, which is named, may sample other bits than `here`.
        SyncError, EngineError: an engine does not take the weights, or cannot be reached.
    """
    if here.why_not is not None:
        raise ValueError(f"addresses must be empty for this model: {here.why_not}")
    engines = [own_engine(address, patience) for address in addresses]
    for engine in engines:
        _require_alike(engine, model)
    probe = Probe(probe_requests(requests), scoring_with(model), model.dtype)
    name = weights or "start"
    synced = SyncedEngines(engines, probe)
    synced.update_weights(model.state_dict(), name)
    for engine in engines:
        _require_same_bits(engine, name, here, weights, probe.requests)
    return replace(here, engine=synced)


def own_engine(address: str, patience: float = 600.0) -> OwnEngineClient:
    """The client of the engine process at an address of this machine.

    Raises ValueError for another machine: a token must not be sent unencrypted over a network.
    """
    if urlsplit(address).hostname not in _THIS_MACHINE:
        raise ValueError(
            f"the address {address!r} is not on this machine, such as http://127.0.0.1:8471; reach "
            "an engine elsewhere through an SSH tunnel"
        )
    return OwnEngineClient(Caller(address, os.environ.get(TOKEN), patience))


def _require_alike(engine: OwnEngineClient, model: PreTrainedModel) -> None:
    there = engine.describe()
    for name, value in bears_on_bits(model).items():
        if there.get(name) != value:
            raise ValueError(
                f"the engine at {engine.address} has {name}={there.get(name)} and this process "
                f"{name}={value}: it would draw other bits; start it with the same"
            )


def _require_same_bits(
    engine: OwnEngineClient,
    name: str,
    here: EngineChoice,
    weights: str,
    requests: Sequence[Request],
) -> None:
    """If a completion depends on the others in its batch, both engines sample it alone."""
    parts = [list(requests)] if here.batch_invariant else [[request] for request in requests]
    for part in parts:
        if _bits(engine, part, name) != _bits(here.engine, part, weights):
            raise ValueError(
                f"the engine at {engine.address} draws other bits than this process with the same "
                "weights: where it runs would be part of the result; leave addresses empty"
            )


def _bits(engine: Engine, requests: Iterable[Request], weights: str) -> set[tuple[Any, ...]]:
    """What an engine samples, without the digest of its weights."""
    drawn = engine.sample(requests, weights)
    return {(done.row, done.k, done.ids, done.logps, done.finish) for done in drawn}
