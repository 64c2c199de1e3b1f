"""What cannot bear on a result: settings of how a step is done, and code for whoever watches.

A key holds every setting of a step and all code that it reaches. Two things are declared not to
belong there:

    keep_last: int = detail_field(1)      a setting of how, not of what

    @execution_detail                     code that only measures or shows
    class Usage: ...

The test to apply is the same for both: *would an artifact that is there already be a wrong answer
if this were different?* Memory, throughput, progress, logs and notices are for whoever watches. A
heading in a ``summary.md`` is in an artifact, but no step reads it, and the summary with the old
heading is still right. A number, a row, a mask, a weight or a seed is never a detail, and neither
is a check that refuses to go on.

Libraries below ``steps/`` import nothing of the caching core, which knows both by their looks: the
field by its metadata, the definition by its decorator's name.
"""

from dataclasses import field
from typing import Any, TypeVar

Definition = TypeVar("Definition")


def execution_detail(definition: Definition) -> Definition:
    """Declares a function or class that cannot bear on a result: no key follows it."""
    return definition


@execution_detail
def kept(error: BaseException) -> BaseException:
    """An exception that is kept to be raised again, or to be read by people, as in a list of
    dropped rows: its text bears on no result."""
    return error


def detail_field(default: Any) -> Any:
    """A dataclass field of this default that cannot bear on a result: it is part of no key."""
    return field(default=default, metadata={"identity": False})


def added_field(default: Any, *, before: Any) -> Any:
    """A dataclass field that came later: it is part of no key while its value is `before`, which
    results had implicitly that were made without the field."""
    return field(default=default, metadata={"before": before})


def is_detail(setting: Any) -> bool:
    """Whether a dataclass's field is one of those."""
    return not setting.metadata.get("identity", True)
