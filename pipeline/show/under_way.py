"""Curves and progress of steps that still run."""

from pipeline.show.logged import unfinished_log
from pipeline.show.terminal import parse_progress, progress_text
from pipeline.show.views import Curves, View, lines_of
from pipeline.store.layout import Store


def unfinished_views(store: Store, step: str, key: str) -> list[View]:
    """The curves of a step that still runs, from its last checkpoint."""
    lines = lines_of(unfinished_log(store, step, key))
    return [Curves(step, "step", lines)] if lines else []


def progress_of(store: Store, step: str, key: str) -> str:
    """The progress that a step has written, as text; empty if it has written none."""
    data = store.read(store.progress_path(step, key))
    progress = parse_progress(data) if data else None
    return progress_text(progress) if progress else ""
