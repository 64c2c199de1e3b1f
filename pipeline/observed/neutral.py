"""Traces of the present code for artifacts of earlier code: what a user may accept.

:func:`accepted_trace` serves any change, and :func:`neutral_trace` a change that looks neutral:
names, places, documentation, hints or texts of messages differ, and nothing else. It is a guess, by
:mod:`pipeline.trace.looks`, so it only ever serves a suggestion to the user.
"""

from dataclasses import replace

from pipeline.errors import TemperError
from pipeline.observed.discovery import UNREADABLE, Home, Present
from pipeline.observed.states import ABSENT
from pipeline.store.manifest import Discovered
from pipeline.trace.counted import (
    Loaded,
    digests,
    functions_like,
    looks,
    seen_in,
    total_look,
)
from pipeline.trace.modules import Modules
from pipeline.trace.reach import at_import, reached, whole


def accepted_trace(home: Home, discovered: Discovered, present: Present) -> Discovered:
    """The trace of the present code for an artifact of earlier code that a user accepts. Which
    functions the present code would run is not known, so all that counted code mentions count.

    Raises:
        TemperError: a module is gone, so nothing says which code stands in its place.
    """
    places, now = Modules(home.module), present.state(home, discovered)
    if gone := [name for name, digest in now.code.items() if digest in (ABSENT, UNREADABLE)]:
        module = gone[0].partition(":")[0]
        raise TemperError(
            f"{module} is gone or is no valid Python, so there is nothing to accept in its place; "
            "run the step again"
        )

    loaded = reached(seen_in(discovered.code), places, whole)
    all_ran = {
        name: replace(module, ran=frozenset(module.source.functions))
        for name, module in loaded.items()
    }
    return replace(now, code=digests(all_ran, places.has), looks=looks(all_ran, places.has))


def neutral_trace(home: Home, discovered: Discovered, present: Present) -> Discovered | None:
    """The trace of the present code, if it looks like the code of this trace; ``None`` otherwise.

    A function that is gone may have another name now, or lie in another module: it is sought by its
    look among all functions of the modules that the step would import.
    """
    now = present.state(home, discovered)
    if (now.files, now.folders) != (discovered.files, discovered.folders):
        return None
    places, seen = Modules(home.module), seen_in(discovered.code)

    loaded = reached([home.module], places, at_import)
    by_any = reached([home.module], places, whole)
    differ = {u.partition(":")[0] for u, was in discovered.code.items() if now.code.get(u) != was}
    kept = reached(seen.keys() - differ, places, lambda _: ())
    loaded |= {name: module for name, module in by_any.items() if name in seen} | kept
    gone = {look for unit, look in discovered.looks.items() if unit not in now.code}
    ran = {name: {*(seen[name][0] or ())} if name in seen else set[str]() for name in loaded}
    for name, function in functions_like(loaded, places.has, gone):
        ran[name].add(function)
    found: dict[str, Loaded] = {}
    for name, module in loaded.items():
        functions, asked = seen.get(name, (frozenset(), frozenset()))
        found[name] = replace(
            module, ran=None if functions is None else frozenset(ran[name]), asked=asked
        )
    found_looks = looks(found, places.has)
    if total_look(found_looks) != total_look(discovered.looks):
        return None
    return replace(now, code=digests(found, places.has), looks=found_looks)
