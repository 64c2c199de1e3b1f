"""Which modules of a project others may import, by their source."""

from collections.abc import Callable, Iterable

from pipeline.trace import sources
from pipeline.trace.counted import BY_FILE, Loaded, imported_by
from pipeline.trace.modules import Modules
from pipeline.trace.source_parts import Part


def whole(module: Loaded) -> Iterable[Part]:
    """All of a module, with the bodies of its functions."""
    return [module.source.whole]


def at_import(module: Loaded) -> Iterable[Part]:
    """The statements of a module's top level, without the bodies of functions."""
    return [statement.part for statement in module.source.statements]


def reached(
    names: Iterable[str],
    places: Modules,
    parts: Callable[[Loaded], Iterable[Part]] = lambda _: (),
) -> dict[str, Loaded]:
    """Modules of the project by name, with all that some of their parts import in turn."""
    loaded: dict[str, Loaded] = {}
    waiting = [*names]
    while waiting:
        if (name := waiting.pop()) in loaded or (path := places.file(name)) is None:
            continue
        if not places.has(name) or not (path.endswith(".py") or BY_FILE in name):
            continue
        source = sources.parsed(places.content(name))
        loaded[name] = Loaded(source, path.endswith("__init__.py"), frozenset())
        waiting += imported_by(name, loaded[name], parts(loaded[name]))
    return loaded
