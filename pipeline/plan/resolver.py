"""What exists: the artifact that a step stands for, if it has been made."""

import contextlib
from collections.abc import Container, Iterable, Iterator
from typing import Any

from pipeline.dag.canonical import Json, hash_json
from pipeline.dag.step import Input, Step
from pipeline.errors import TemperError
from pipeline.observed.discovery import Present, home_of
from pipeline.store.accepted import equal_states
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest


class Resolver:
    """Finds the artifact a step stands for.

    Only what exists is remembered: what is missing now may be committed a moment later, perhaps
    by another driver.

    Args:
        unusable: attempts whose artifacts must be made again.
        forced: fingerprints of steps that only an artifact made in the run ``run`` satisfies.
        live: ask the store for what was not there when its steps were listed.
        present: what discovered dependencies are, where somebody has looked already.
    """

    def __init__(
        self,
        catalog: Catalog,
        unusable: Container[str] = (),
        forced: Container[str] = (),
        run: str = "",
        live: bool = False,
        present: Present | None = None,
    ):
        self.catalog = catalog
        self._present = present or Present()
        self.store = catalog.store
        self._unusable, self._forced = unusable, forced
        self._run, self._live = run, live
        self._found: dict[str, Manifest] = {}
        self._accepted: dict[str, list[tuple[Json, Json]]] = {}

    def artifact(self, step: Step) -> Manifest | None:
        """The committed artifact of a step, or ``None``. Its inputs are looked up first."""
        pending = [step]
        while pending:
            needed = pending[-1]
            unknown = [i.step for i in needed.inputs if i.step.fingerprint not in self._found]
            if len(pending) > 1 and needed.fingerprint in self._found:
                pending.pop()  # by way of another step that needs it
            elif unknown:
                pending.extend(reversed(unknown))
            elif (found := self._committed(needed)) is None:
                return None  # and so whatever needs it has none either
            else:
                self._found[needed.fingerprint] = found
                pending.pop()
        return self._found[step.fingerprint]

    def artifacts(self, steps: Iterable[Step]) -> dict[str, Manifest]:
        """The committed artifacts of those steps that have one, by fingerprint."""
        found = {step.fingerprint: self.artifact(step) for step in steps}
        return {fingerprint: made for fingerprint, made in found.items() if made is not None}

    def key_and_recipe(self, step: Step) -> tuple[str, Json] | None:
        """The key of a step and what it is the hash of; ``None`` if an input is not known yet to
        :meth:`artifact`."""
        known = {i: self._found.get(i.step.fingerprint) for i in step.inputs}
        digests = {i: m.digest_of(i.part) for i, m in known.items() if m is not None}
        if len(digests) < len(known):
            return None
        recipe = step.recipe(digests.__getitem__)
        return hash_json(recipe), recipe

    def current_key_and_recipe(self, step: Step) -> tuple[str, Json] | None:
        """:meth:`key_and_recipe`, with inputs looked up that may have been made a moment ago; for
        whoever shows a run: ``None`` also if that goes wrong, since the run will say what is."""
        with contextlib.suppress(OSError, TemperError):
            for reference in step.inputs:
                self.artifact(reference.step)
            return self.key_and_recipe(step)
        return None

    def inputs(self, step: Step) -> list[tuple[Input, Manifest]]:
        """What each input of a step turned out to be, in the order of ``step.inputs``.

        Raises:
            TemperError: an input is not in the store.
        """
        found = []
        for reference in step.inputs:
            manifest = self.artifact(reference.step)
            if manifest is None:
                raise TemperError(f"{step.name}: its input {reference} is not in the store")
            found.append((reference, manifest))
        return found

    def _committed(self, step: Step) -> Manifest | None:
        resolved = self.key_and_recipe(step)
        if resolved is None:
            return None
        return self._usable(step, step.name, resolved[0]) or next(
            filter(None, (self._usable(step, *place) for place in self._equivalent_places(step))),
            None,
        )

    def _usable(self, step: Step, name: str, key: str) -> Manifest | None:
        manifest = self._current(step, name, key)
        if self._live and (manifest is None or not self._is_usable(step, manifest)):
            self.catalog.look(name, key)  # made, or made again, since it was listed
            manifest = self._current(step, name, key)
        return manifest if manifest and self._is_usable(step, manifest) else None

    def _current(self, step: Step, name: str, key: str) -> Manifest | None:
        """What a key stands for: its latest generation whose discovered dependencies are now what
        they were."""
        generations = self.catalog.generations(name, key)
        return next((made for made in generations if not self.outdated(step, made)), None)

    def outdated(self, step: Step, manifest: Manifest) -> list[str]:
        """Which discovered dependencies of an artifact are not what they were, in words. Of what
        this run has made nobody asks: it is what the files were when the step read them. A
        declared version stands for what was discovered too."""
        if not manifest.discovered or step.function.version is not None:
            return []
        if self._run and manifest.provenance.get("run") == self._run:
            return []
        return self.changes(step, manifest)

    def changes(self, step: Step, manifest: Manifest) -> list[str]:
        """Which discovered dependencies differ, in words, whatever that means for a step."""
        home, pairs = home_of(step.function), lambda: self._pairs(step)
        return self._present.changes(home, manifest.discovered, pairs)

    def _is_usable(self, step: Step, manifest: Manifest) -> bool:
        if step.fingerprint in self._forced and manifest.provenance.get("run") != self._run:
            return False
        return manifest.attempt not in self._unusable

    def accepted(self, step: Step) -> list[Json]:
        """What may stand for a step's code in a recipe: the present code, and what was accepted as
        equivalent to it, also by way of others."""
        return equal_states(step.made_by, self._pairs(step))

    def _pairs(self, step: Step) -> list[tuple[Json, Json]]:
        """What was accepted as equal, of the step and of what it was called before."""
        names = (step.name, *step.function.was)
        for name in names:
            if name not in self._accepted:
                self._accepted[name] = self.store.accepted(name)
        return [pair for name in names for pair in self._accepted[name]]

    def _equivalent_places(self, step: Step) -> Iterator[tuple[str, str]]:
        """Where else a step's artifact may lie, by step name and key: made by code that is accepted
        as equal, or when the step had another name."""

        def digest_of(reference: Input) -> str:
            return self._found[reference.step.fingerprint].digest_of(reference.part)

        accepted: list[Any] = self.accepted(step)
        for name in (step.name, *step.function.was):
            for made_by in accepted[1:] if name == step.name else accepted:
                yield name, hash_json(step.recipe(digest_of, made_by, name))
