"""The folders, callbacks and ranks of a step, as the libraries take them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeline import Artifact, Output

if TYPE_CHECKING:
    from steps.models.workplace import Workplace


@contextmanager
def at_work(out: Output, base: Artifact | None = None) -> "Iterator[Workplace]":
    """The step's output and scratch folders, its callbacks, and its connected ranks.

    Args:
        base: the model from which training starts, for a step that declares `rests_on`.
    """
    from steps.models.ranks import together
    from steps.models.workplace import Workplace

    with together() as ranks:
        named = base and base.digest
        yield Workplace(out.path, out.scratch, out.progress, lambda: out.stopping, ranks, named)


def base_of_adapters(**arguments: Any) -> Any:
    """The model on which the model of a training step rests, if it will hold adapters alone."""
    lora = arguments["config"].lora
    is_alone = lora is not None and lora.is_alone
    return arguments["init" if "init" in arguments else "policy"] if is_alone else None
