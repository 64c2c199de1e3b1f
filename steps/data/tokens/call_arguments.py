"""How a chat template takes tools, and the arguments of their calls: as an object, or as JSON text.

Data sets have either. A template for objects would write a text escaped, as a string within JSON;
one for texts refuses an object, or writes it as Python would. :func:`way_of` finds out which kind
a template is from one call that is written both ways, and :func:`fitted` converts a call to it.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

Way = Literal["as is", "text", "object"]
"""`as is`: the template writes a text as it is, and an object as the same text. `text`: it writes
only a text so. `object`: anything else."""

Call = Mapping[str, Any]

_WORD = "TemperProbes"
_PROBED = {"about": f"{_WORD}'\n"}
"""Arguments that JSON, JSON within JSON, and Python each write in another way."""


def probes(*, nested: bool) -> tuple[Call, Call]:
    """One call, with its arguments as an object and as text. A nested call has them in `function`,
    beside its name."""
    made = [{"name": "look_up", "arguments": given} for given in (_PROBED, _text(_PROBED))]
    calls = [{"function": call} if nested else call for call in made]
    as_object, as_text = ({"id": "TemperId1", "type": "function", **call} for call in calls)
    return as_object, as_text


def way_of(write: Callable[[Call], str], *, nested: bool) -> Way | None:
    """How a template takes arguments; None if it writes neither kind.

    Args:
        write: writes a conversation with a call; raises ValueError if the template refuses it.
    """
    of_object, of_text = (_written(write, call) for call in probes(nested=nested))
    if _WORD not in of_object + of_text:
        return None
    if of_object == of_text:
        return "as is"
    lost = _WORD not in of_object or repr(_PROBED) in of_object
    return "text" if lost and _text(_PROBED) in of_text else "object"


def fitted(call: Call, way: Way) -> Call:
    """A call with its arguments as a template takes them.

    Raises:
        ValueError: the template takes an object, and the arguments are damaged JSON.
    """
    function = call.get("function")
    holder = function if isinstance(function, Mapping) else call
    given = holder.get("arguments")
    if way == "text" and isinstance(given, Mapping | list):
        given = _text(given)
    elif way == "object" and isinstance(given, str):
        given = _object_in(given)
    if given is holder.get("arguments"):
        return call
    changed = {**holder, "arguments": given}
    return changed if holder is call else {**call, "function": changed}


def as_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as servers hand it to a template, and as templates are written for it: in `function`.

    Some data sets have its name and parameters alone (xLAM), or beside its type.
    """
    if "name" not in tool or "function" in tool or tool.get("type", "function") != "function":
        return dict(tool)
    inner = {key: value for key, value in tool.items() if key != "type"}
    return {"type": "function", "function": inner}


def _written(write: Callable[[Call], str], call: Call) -> str:
    try:
        return write(call)
    except ValueError:
        return ""


def _text(value: Any) -> str:
    """The JSON text that a chat template's own `tojson` writes."""
    return json.dumps(value, ensure_ascii=False)


def _object_in(text: str) -> Any:
    """The object of a JSON text, which is empty for a blank text; another text unchanged."""
    if text.strip() and not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text.strip() or "{}", object_pairs_hook=_without_double, strict=False)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"the arguments of a call are no JSON object, which the chat template takes ({error})"
        ) from None


def _without_double(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a key twice")
    return found
