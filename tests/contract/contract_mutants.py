"""Ways to break the contract, each as small as a slip of the pen, with a history that shows it.

The attack has found them all. A new one is written without a history, as ``@noticed_in()``: then
its test searches for the shortest, and fails with it.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from contract_edits import (
    Accept,
    Corrupt,
    Declare,
    EditCode,
    EditDetails,
    EditFile,
    EditSetting,
    Evict,
    Grow,
    LoseFile,
    MoveFiles,
    Refactor,
    Rephrase,
    Transition,
)
from contract_lab import Crash, Stage
from contract_model import BEFORE, Node, World

from pipeline.dag import canonical, digests
from pipeline.dag.canonical import hash_json
from pipeline.dag.step import Step
from pipeline.observed.discovery import Present
from pipeline.plan import planning as plan
from pipeline.running import attempts as execution
from pipeline.store import layout as store
from pipeline.store import manifest
from pipeline.store.catalog import Catalog
from pipeline.trace import counted
from pipeline.trace.counted import Loaded
from pipeline.worker import attempt as worker

Patch = pytest.MonkeyPatch
Mutate = Callable[[Patch], None]

LOAD = World((Node("load"),), (0,))
SCALE = World((Node("load"), Node("scale", ((0, None),))), (1,))
SCALE_LOW = World((Node("load"), Node("scale", ((0, "low"),))), (1,))
FOLD = World((Node("load"), Node("fold", ((0, None), (0, None)))), (1,))


@dataclass(frozen=True)
class Mutant:
    """What breaks the contract, and a history that shows it."""

    mutate: Mutate
    history: tuple[World, list[Transition]] | None


MUTANTS: dict[str, Mutant] = {}


def noticed_in(world: World | None = None, *history: Transition) -> Callable[[Mutate], Mutate]:
    def note(mutate: Mutate) -> Mutate:
        name = mutate.__name__.replace("_", " ")
        MUTANTS[name] = Mutant(mutate, None if world is None else (world, list(history)))
        return mutate

    return note


@noticed_in(SCALE, Transition((EditSetting(1, "factor", 1),)))
def a_setting_is_left_out_of_the_key(patch: Patch) -> None:
    _details(patch, lambda field, is_detail: is_detail or field.name == "factor")


@noticed_in(SCALE, Transition((EditDetails(1),)))
def execution_details_count(patch: Patch) -> None:
    _details(patch, lambda field, is_detail: is_detail and "identity" not in field.metadata)


@noticed_in(SCALE, Transition((Grow("extra", BEFORE), Accept(0), Accept(1))))
def added_fields_count(patch: Patch) -> None:
    _details(patch, lambda field, is_detail: is_detail and "before" not in field.metadata)


@noticed_in(FOLD, Transition((Grow("fold bonus", 1),)))
def added_parameters_are_left_out_whatever_they_are(patch: Patch) -> None:
    original = Step._arguments

    def arguments(self: Any, *args: Any) -> Any:
        return {k: v for k, v in original(self, *args).items() if k not in self.function.added}

    patch.setattr(Step, "_arguments", arguments)


@noticed_in(LOAD, Transition((EditCode("helper", 1),)))
def helpers_are_not_followed(patch: Patch) -> None:
    _code(patch, lambda found, _: {k: v for k, v in found.items() if k.startswith("lab_steps:")})


@noticed_in(LOAD, Transition((Rephrase("lab_steps", 1),)))
def comments_are_code(patch: Patch) -> None:
    _code(patch, lambda _, modules: {name: m.source.text for name, m in modules.items()})


@noticed_in(LOAD, Transition((EditCode("unrelated", 1),)))
def what_did_not_run_counts(patch: Patch) -> None:
    _code(patch, lambda _, modules: {name: m.source.whole.digest for name, m in modules.items()})


@noticed_in(LOAD, Transition((EditCode("load", 1),)), Transition((EditCode("load", 0),)))
def the_latest_trace_alone_counts(patch: Patch) -> None:
    original = Catalog.generations
    patch.setattr(Catalog, "generations", lambda *args: list(original(*args))[:1])


@noticed_in(
    LOAD,
    Transition((EditFile(0, (1, 1)),), crash=Crash(Stage.MID_WRITE, 0)),
    Transition((EditCode("load", 1),)),
)
def scratch_of_other_code_is_used(patch: Patch) -> None:
    patch.setattr(Present, "changes", lambda *args: [])


@noticed_in(FOLD, Transition((Declare(2),)))
def a_declared_version_stands_for_all_others(patch: Patch) -> None:
    original: Any = Step.made_by.fget  # type: ignore[attr-defined]

    def made_by(self: Any) -> Any:
        return {"version": "1"} if self.function.version is not None else original(self)

    patch.setattr(Step, "made_by", property(made_by))


@noticed_in(SCALE, Transition((EditFile(0, (1, 1)),)))
def digests_are_over_names(patch: Patch) -> None:
    for module in (manifest, execution):
        patch.setattr(module, "files_digest", lambda files: hash_json(sorted(files)))


@noticed_in(SCALE, Transition(force="load"))
def keys_are_over_attempts(patch: Patch) -> None:
    patch.setattr(
        manifest.Manifest, "digest_of", lambda self, part: hash_json([self.attempt, part])
    )


@noticed_in(SCALE_LOW, Transition((EditFile(0, (0, 1)),)))
def a_part_is_as_the_whole(patch: Patch) -> None:
    patch.setattr(manifest.Manifest, "digest_of", lambda self, part: self.digest)


@noticed_in(LOAD, *[Transition()] * 3, Transition((EditFile(0, (1, 1)),), sneaky=True))
def files_are_told_by_their_mtime(patch: Patch) -> None:
    patch.setattr(digests, "_row_key", lambda path, state: (os.fsencode(path), str(state.mtime_ns)))


@noticed_in(LOAD, Transition((MoveFiles(),)))
def files_are_told_by_where_they_lie(patch: Patch) -> None:
    patch.setattr("pipeline.dag.inputs.File.identity", lambda self: {"content": self.url})


@noticed_in(SCALE, Transition((Evict(0),)))
def evicted_is_as_never_made(patch: Patch) -> None:
    original = plan.Resolver._is_usable

    def is_usable(self: Any, step: Any, manifest: Any) -> bool:
        return original(self, step, manifest) and self.catalog.loss(manifest) is None

    patch.setattr(plan.Resolver, "_is_usable", is_usable)


@noticed_in(LOAD, Transition((LoseFile(0, "low"),)))
def lost_files_go_unnoticed(patch: Patch) -> None:
    patch.setattr(store.Store, "lost_among", lambda self, manifests: {})
    patch.setattr(store.Store, "lost_files", lambda self, manifest: [])


@noticed_in(SCALE, Transition((Corrupt(0, "high"), EditSetting(1, "factor", 1))))
def the_worker_trusts_its_inputs(patch: Patch) -> None:
    patch.setattr(worker, "check_input", lambda *args: None)


@noticed_in(LOAD, Transition((Evict(0),)))
def the_first_generation_counts(patch: Patch) -> None:
    original = Catalog._list

    def listed(self: Any, step: str) -> Any:
        shelf = original(self, step)
        shelf.generations.update(dict.fromkeys(shelf.generations, 0))
        return shelf

    patch.setattr(Catalog, "_list", listed)


@noticed_in(LOAD, Transition((Refactor("load", 1), Accept(0))))
def accepted_code_is_forgotten(patch: Patch) -> None:
    patch.setattr(store.Store, "accepted", lambda self, step: {})


@noticed_in(LOAD, Transition((Refactor("load", 1), Accept(0))), Transition((EditCode("load", 1),)))
def what_was_accepted_once_goes_for_all(patch: Patch) -> None:
    original = Present.changes

    def changes(self: Any, home: Any, trace: Any, accepted: Any = dict) -> list[str]:
        return [] if trace.state in accepted() else original(self, home, trace, accepted)

    patch.setattr(Present, "changes", changes)


@noticed_in(LOAD, Transition(force="load"))
def force_is_not_heard(patch: Patch) -> None:
    patch.setattr(plan, "steps_named", lambda plan, names, option: [])


@noticed_in(
    LOAD,
    Transition((EditSetting(0, "start", 1),), crash=Crash(Stage.AFTER_MANIFEST, 0)),
    Transition(),
)
def the_index_is_believed_whatever_it_says(patch: Patch) -> None:
    original = Catalog._list

    def listed(self: Any, step: str) -> Any:
        shelf = original(self, step)
        if shelf.indexed:
            known = set(map(store.parse_object_name, shelf.indexed))
            shelf.versions = {p: v for p, v in shelf.versions.items() if (*p, None) in known}
            shelf.generations = {key: 0 for key, _ in shelf.versions}
        return shelf

    patch.setattr(Catalog, "_list", listed)


def _code(
    patch: Patch, rule: Callable[[Mapping[str, str], Mapping[str, Loaded]], Mapping[str, str]]
) -> None:
    alone, with_looks = counted.digests, counted.digests_and_looks

    def both(modules: Mapping[str, Loaded], has: Callable[[str], int]) -> Any:
        found, looks = with_looks(modules, has)
        return rule(found, modules), looks

    patch.setattr(counted, "digests", lambda modules, has: rule(alone(modules, has), modules))
    patch.setattr(counted, "digests_and_looks", both)


def _details(patch: Patch, rule: Callable[[dataclasses.Field, bool], bool]) -> None:
    original = canonical._Encoder._is_detail

    def is_detail(self: Any, field: dataclasses.Field, value: Any, where: str) -> bool:
        return rule(field, original(self, field, value, where))

    patch.setattr(canonical._Encoder, "_is_detail", is_detail)
