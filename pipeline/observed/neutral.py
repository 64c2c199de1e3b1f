"""Traces of the present code for artifacts of earlier code: what a user may accept.

:func:`accepted_trace` serves any change, and :func:`neutral_trace` a change that looks neutral:
names, places, documentation, hints or texts of messages differ, and nothing else. It is a guess, by
:mod:`pipeline.trace.looks`, so it only ever serves a suggestion to the user.
"""

from dataclasses import replace

from pipeline.base.errors import TemperError
from pipeline.observed.discovery import Home, Present
from pipeline.store.manifest import Discovered
from pipeline.trace import counted
from pipeline.trace.changes import UNREADABLE
from pipeline.trace.counted import Loaded, seen_in, total_look
from pipeline.trace.modules import Modules
from pipeline.trace.reach import at_import, reached, whole


def accepted_trace(home: Home, now: Discovered) -> Discovered:
    """The trace of the present code of a step. Which functions it would run is not known, so those
    that ran before count, and all that counted code mentions.

    Args:
        now: the trace of earlier code, with its present digests.

    Raises:
        TemperError: a module cannot be read, or is no valid Python.
    """
    places, seen = home.places(), seen_in(now.code)
    if wrong := [name for name, digest in now.code.items() if digest == UNREADABLE]:
        raise TemperError(f"{wrong[0].partition(':')[0]} is no valid Python; mend it first")
    classes = _classes(now)
    found = reached([home.module, *classes, *seen], places)
    for name, module in found.items():
        ran, asked = seen.get(name, (frozenset[str](), frozenset[str]()))
        asked |= classes.get(name, set())
        if ran is not None:
            began = {home.function} if name == home.module else set[str]()
            ran = (ran | began) & {*module.source.functions}
        found[name] = replace(module, ran=ran, asked=asked)
    found = counted.may_run(found, places.has, lambda name: reached([name], places).get(name))
    code, found_looks = counted.digests_and_looks(found, places.has)
    return replace(now, code=code, looks=found_looks)


def neutral_trace(home: Home, discovered: Discovered, present: Present) -> Discovered | None:
    """The trace of the present code, if it looks like the code of this trace; ``None`` otherwise.

    A function that is gone may have another name now, or lie in another module: it is sought by its
    look among all functions of the modules that the step would import.
    """
    now = present.state(home, discovered)
    if (now.files, now.folders) != (discovered.files, discovered.folders):
        return None
    places, seen = home.places(), seen_in(discovered.code)
    if any(_is_bound(name, places) for name in {*discovered.entry} - {*now.entry}):
        return None  # another definition of the same name, and not this one in another place

    classes = _classes(now)
    loaded = reached([home.module, *classes], places, at_import)
    by_any = reached([home.module, *classes], places, whole)
    differ = {u.partition(":")[0] for u, was in discovered.code.items() if now.code.get(u) != was}
    kept = reached(seen.keys() - differ, places)
    loaded |= {name: module for name, module in by_any.items() if name in seen} | kept
    gone = {look for unit, look in discovered.looks.items() if unit not in now.code}
    ran = {name: {*(seen[name][0] or ())} if name in seen else set[str]() for name in loaded}
    for name, function in counted.functions_like(loaded, places.has, gone):
        ran[name].add(function)
    found: dict[str, Loaded] = {}
    for name, module in loaded.items():
        functions, asked = seen.get(name, (frozenset[str](), frozenset[str]()))
        all_ran = None if functions is None else frozenset(ran[name])
        found[name] = replace(module, ran=all_ran, asked=asked | classes.get(name, set()))
    code, found_looks = counted.digests_and_looks(found, places.has)
    if total_look(found_looks) != total_look(discovered.looks):
        return None
    return replace(now, code=code, looks=found_looks)


def _classes(trace: Discovered) -> dict[str, set[str]]:
    """The names of the classes of arguments and inputs, by module: a worker looks them up."""
    found: dict[str, set[str]] = {}
    for reference in trace.entry[1:]:
        module, _, name = reference.partition(":")
        found.setdefault(module, set()).add(name.partition(".")[0])
    return found


def _is_bound(reference: str, places: Modules) -> bool:
    module, _, name = reference.partition(":")
    loaded = reached([module], places).get(module)
    return loaded is not None and name.partition(".")[0] in loaded.source.bindings
