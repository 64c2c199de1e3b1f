"""Finds the artifact of a step, if it has been made and may be reused."""

import contextlib
import functools
from collections.abc import Container, Iterable, Iterator, Mapping

from pipeline.base.errors import TemperError
from pipeline.dag.canonical import Json, hash_json
from pipeline.dag.step import Input, Step
from pipeline.observed.discovery import Home, Present, home_of
from pipeline.observed.neutral import neutral_trace
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Discovered, Manifest
from pipeline.store.names.recorded import artifact_of_record


class Resolver:
    """Finds the artifacts of steps.

    It remembers only artifacts that it found: one that is missing now may be committed a moment
    later, perhaps by another driver.

    Args:
        unusable: attempts whose artifacts must be made again.
        forced: fingerprints of steps for which only artifacts of the run ``run`` count.
        live: look again in the store for artifacts that were missing when the catalog was read.
        present: the current state of discovered dependencies, if it is known already.
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
        self._accepted: dict[str, Mapping[str, list[Discovered]]] = {}
        self._neutral: dict[tuple[Home, int], tuple[Discovered, bool]] = {}

    def artifact(self, step: Step) -> Manifest | None:
        """The committed artifact of a step, or ``None``. Its inputs are looked up first."""
        pending = [step]
        while pending:
            needed = pending[-1]
            unknown = [i.step for i in needed.inputs if i.step.fingerprint not in self._found]
            if len(pending) > 1 and needed.fingerprint in self._found:
                pending.pop()  # found meanwhile, as an input of another step
            elif unknown:
                pending.extend(reversed(unknown))
            elif (found := self._committed(needed)) is None:
                return None  # so no step that needs it has an artifact either
            else:
                self._found[needed.fingerprint] = found
                pending.pop()
        return self._found[step.fingerprint]

    def artifacts(self, steps: Iterable[Step]) -> dict[str, Manifest]:
        """The committed artifacts of steps, by fingerprint; steps without one are left out."""
        found = {step.fingerprint: self.artifact(step) for step in steps}
        return {fingerprint: made for fingerprint, made in found.items() if made is not None}

    def key_and_recipe(self, step: Step) -> tuple[str, Json] | None:
        """The key of a step and the recipe that it hashes; ``None`` if :meth:`artifact` has not
        found one of its inputs yet."""
        known = {i: self._found.get(i.step.fingerprint) for i in step.inputs}
        digests = {i: m.digest_of(i.part) for i, m in known.items() if m is not None}
        if len(digests) < len(known):
            return None
        recipe = step.recipe(digests.__getitem__)
        return hash_json(recipe), recipe

    def current_key_and_recipe(self, step: Step) -> tuple[str, Json] | None:
        """Like :meth:`key_and_recipe`, but it also looks up inputs that may just have been made.

        It serves displays of a run: it returns ``None`` also on an error, which the run itself
        reports.
        """
        with contextlib.suppress(OSError, TemperError):
            for reference in step.inputs:
                self.artifact(reference.step)
            return self.key_and_recipe(step)
        return None

    def inputs(self, step: Step) -> list[tuple[Input, Manifest]]:
        """The artifact of each input of a step, in the order of ``step.inputs``.

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
        if (made := artifact_of_record(self.catalog, step)) is not None:
            if made.attempt in self._unusable:
                raise TemperError(f"the data of {made.name} is lost; run its experiment again")
            return made
        resolved = self.key_and_recipe(step)
        if resolved is None:
            return None
        return self._usable(step, step.name, resolved[0]) or next(
            filter(None, (self._usable(step, *place) for place in self._former_places(step))),
            None,
        )

    def _usable(self, step: Step, name: str, key: str) -> Manifest | None:
        manifest = self._current(step, name, key)
        if self._live and (manifest is None or not self._is_usable(step, manifest)):
            self.catalog.look(name, key)  # it may have been made since the catalog was read
            manifest = self._current(step, name, key)
        return manifest if manifest and self._is_usable(step, manifest) else None

    def _current(self, step: Step, name: str, key: str) -> Manifest | None:
        """The valid artifact of a key: the latest one whose discovered dependencies have not
        changed."""
        generations = self.catalog.generations(name, key)
        return next((made for made in generations if not self.outdated(step, made)), None)

    def outdated(self, step: Step, manifest: Manifest) -> list[str]:
        """The discovered dependencies of an artifact that have changed, in words.

        Artifacts of this run are not checked: they are valid for the files as the step read them. A
        declared version replaces discovered dependencies as well.
        """
        if not manifest.discovered or step.function.version is not None:
            return []
        if self._run and manifest.provenance.get("run") == self._run:
            return []
        return self.changes(step, manifest)

    def changes(self, step: Step, manifest: Manifest) -> list[str]:
        """The discovered dependencies that have changed, in words, also for a step with a
        version."""
        home = home_of(step.function, step.portable_arguments, step.type_names)
        accepted = functools.partial(self._traces, manifest.step)
        return self._present.changes(home, manifest.discovered, accepted)

    def made(self, step: Step, key: str) -> list[Manifest]:
        """All artifacts of a call, latest first: with this key, or made under a former name."""
        known = all(i.step.fingerprint in self._found for i in step.inputs)
        places = [(step.name, key), *(self._former_places(step) if known else ())]
        return [made for place in places for made in self.catalog.generations(*place)]

    def looks_neutral(self, home: Home, manifest: Manifest) -> bool:
        """Whether the present code looks like the code that made an artifact."""
        trace = manifest.discovered
        if (home, id(trace)) not in self._neutral:  # many artifacts share a trace
            is_so = neutral_trace(home, trace, self._present) is not None
            self._neutral[home, id(trace)] = trace, is_so
        return self._neutral[home, id(trace)][1]

    def _is_usable(self, step: Step, manifest: Manifest) -> bool:
        if step.fingerprint in self._forced and manifest.provenance.get("run") != self._run:
            return False
        return manifest.attempt not in self._unusable

    def _traces(self, name: str) -> Mapping[str, list[Discovered]]:
        """The traces that users accepted for artifacts of a step of this name."""
        if name not in self._accepted:
            self._accepted[name] = self.store.accepted(name)
        return self._accepted[name]

    def _former_places(self, step: Step) -> Iterator[tuple[str, str]]:
        """The former names of a step, each with the key that its artifact has under it."""

        def digest_of(reference: Input) -> str:
            return self._found[reference.step.fingerprint].digest_of(reference.part)

        for name in step.function.was:
            yield name, hash_json(step.recipe(digest_of, name))
