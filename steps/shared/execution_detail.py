"""Execution details: settings and code that cannot change a result, and are in no key.

A step's key contains all its settings and all code that it reaches, except two kinds of
declarations:

    keep_last: int = detail_field(1)      a setting of how, not of what

    @execution_detail                     code that only measures or shows
    class Usage: ...

The test for both is: *would an existing artifact be wrong if this setting or code were different?*
Memory, throughput, progress, logs and notices are details: people read them, no step does. A
heading in a ``summary.md`` is also a detail: it is in an artifact, but no step reads it, and a
summary with the old heading stays correct. A number, a row, a mask, a weight or a seed is never a
detail, nor is a check that raises an error.

Libraries below ``steps/`` do not import the caching core. The core recognises a detail field by its
metadata, and a decorated definition by the decorator's name.
"""

from dataclasses import field
from typing import Any, TypeVar

Definition = TypeVar("Definition")


def execution_detail(definition: Definition) -> Definition:
    """Mark a function or class that cannot change a result; its code is in no key."""
    return definition


@execution_detail
def kept(error: BaseException) -> BaseException:
    """Mark an exception that is stored, to be raised again or for people to read, as in a list of
    dropped rows. Its text cannot change a result."""
    return error


def detail_field(default: Any) -> Any:
    """A dataclass field with this default that cannot change a result; it is in no key."""
    return field(default=default, metadata={"identity": False})


def added_field(default: Any, *, before: Any) -> Any:
    """A new dataclass field. It is in no key as long as it has the value `before`, which older
    results used implicitly."""
    return field(default=default, metadata={"before": before})


def is_detail(setting: Any) -> bool:
    """Whether a dataclass field is a `detail_field`."""
    return not setting.metadata.get("identity", True)
