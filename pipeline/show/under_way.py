"""Steps that are at work: what there is to see of them by now."""

from pipeline.show.logged import unfinished_log
from pipeline.show.terminal import parse_progress, progress_text
from pipeline.show.views import Curves, View, lines_of
from pipeline.store.layout import Store


def unfinished_views(store: Store, step: str, key: str) -> list[View]:
    """The curves of a step that is at work."""
    lines = lines_of(unfinished_log(store, step, key))
    return [Curves(step, "step", lines)] if lines else []


def progress_of(store: Store, step: str, key: str) -> str:
    """How far a step says that it is; empty if it has said nothing."""
    data = store.read(store.progress_path(step, key))
    progress = parse_progress(data) if data else None
    return progress_text(progress) if progress else ""
