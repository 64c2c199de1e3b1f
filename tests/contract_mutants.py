"""Ways to break the contract, each as small as a slip of the pen. The attack must find them all."""

import dataclasses
import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline import canonical, digests, execution, manifest, plan, store, worker
from pipeline.canonical import hash_json
from pipeline.catalog import Catalog
from pipeline.step import Step

Patch = pytest.MonkeyPatch

STEP = importlib.import_module("pipeline.step")  # `pipeline.step` is the decorator


def a_setting_is_left_out_of_the_key(patch: Patch) -> None:
    _details(patch, lambda field, is_detail: is_detail or field.name == "factor")


def execution_details_count(patch: Patch) -> None:
    _details(patch, lambda field, is_detail: is_detail and "identity" not in field.metadata)


def added_fields_count(patch: Patch) -> None:
    _details(patch, lambda field, is_detail: is_detail and "before" not in field.metadata)


def added_parameters_are_left_out_whatever_they_are(patch: Patch) -> None:
    original = Step._arguments

    def arguments(self: Any, *args: Any) -> Any:
        return {k: v for k, v in original(self, *args).items() if k not in self.function.added}

    patch.setattr(Step, "_arguments", arguments)


def helpers_are_not_followed(patch: Patch) -> None:
    original = STEP.closure

    def closure(*args: Any) -> dict[str, str]:
        return {k: v for k, v in original(*args).items() if k.startswith("lab_steps:")}

    patch.setattr(STEP, "closure", closure)


def comments_are_code(patch: Patch) -> None:
    def closure(function: Any, types: Iterable[type] = ()) -> dict[str, str]:
        folder = Path(function.__code__.co_filename).parent
        return {path.name: hash_json(path.read_text()) for path in folder.glob("*.py")}

    patch.setattr(STEP, "closure", closure)


def a_declared_version_stands_for_all_others(patch: Patch) -> None:
    original: Any = Step.made_by.fget  # type: ignore[attr-defined]

    def made_by(self: Any) -> Any:
        return {"version": "1"} if self.function.version is not None else original(self)

    patch.setattr(Step, "made_by", property(made_by))


def digests_are_over_names(patch: Patch) -> None:
    for module in (manifest, execution):
        patch.setattr(module, "files_digest", lambda files: hash_json(sorted(files)))


def keys_are_over_attempts(patch: Patch) -> None:
    patch.setattr(
        manifest.Manifest, "digest_of", lambda self, part: hash_json([self.attempt, part])
    )


def a_part_is_as_the_whole(patch: Patch) -> None:
    patch.setattr(manifest.Manifest, "digest_of", lambda self, part: self.digest)


def files_are_told_by_their_mtime(patch: Patch) -> None:
    patch.setattr(digests, "_row_key", lambda path, state: (os.fsencode(path), str(state.mtime_ns)))


def files_are_told_by_where_they_lie(patch: Patch) -> None:
    patch.setattr("pipeline.inputs.File.identity", lambda self: {"content": self.url})


def evicted_is_as_never_made(patch: Patch) -> None:
    original = plan.Resolver._is_usable

    def is_usable(self: Any, step: Any, manifest: Any) -> bool:
        return original(self, step, manifest) and self.catalog.loss(manifest) is None

    patch.setattr(plan.Resolver, "_is_usable", is_usable)


def lost_files_go_unnoticed(patch: Patch) -> None:
    patch.setattr(store.Store, "lost_among", lambda self, manifests: {})
    patch.setattr(store.Store, "lost_files", lambda self, manifest: [])


def the_worker_trusts_its_inputs(patch: Patch) -> None:
    patch.setattr(worker, "_check_input", lambda *args: None)


def the_first_generation_counts(patch: Patch) -> None:
    original = Catalog._list

    def listed(self: Any, step: str) -> Any:
        shelf = original(self, step)
        shelf.generations.update(dict.fromkeys(shelf.generations, 0))
        return shelf

    patch.setattr(Catalog, "_list", listed)


def accepted_code_is_forgotten(patch: Patch) -> None:
    patch.setattr(store.Store, "accepted", lambda self, step: [])


def what_was_accepted_once_goes_for_all(patch: Patch) -> None:
    original = plan.Resolver._equivalent_keys

    def equivalent_keys(self: Any, step: Any) -> list[str]:
        accepted = original(self, step)
        return accepted and [m.key for m in self.catalog.history(step.name)]

    patch.setattr(plan.Resolver, "_equivalent_keys", equivalent_keys)


def force_is_not_heard(patch: Patch) -> None:
    patch.setattr(plan, "forced_fingerprints", lambda steps, names: frozenset())


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


def _details(patch: Patch, rule: Callable[[dataclasses.Field, bool], bool]) -> None:
    original = canonical._Encoder._is_detail

    def is_detail(self: Any, field: dataclasses.Field, value: Any, where: str) -> bool:
        return rule(field, original(self, field, value, where))

    patch.setattr(canonical._Encoder, "_is_detail", is_detail)


MUTANTS: Mapping[str, Any] = {
    name.replace("_", " "): found
    for name, found in list(globals().items())
    if callable(found) and getattr(found, "__module__", "") == __name__ and name[0].islower()
}
