"""More of what a user sees of the caching: forcing, evicting, adopting, retrying, growing."""

from pathlib import Path
from typing import Any

import pytest
from numbers_lab import Lab
from toy_steps import Times, add, flaky, journal_lines, stamp

from pipeline import Output, Step, TemperError, adopt, run, step
from pipeline.plan.planning import State, make_plan
from pipeline.running.session import RunFailed
from pipeline.store.catalog import Catalog
from pipeline.store.lease import Leases
from pipeline.store.manifest import Manifest

pytestmark = pytest.mark.usefixtures("workers_here")


def newest(lab: Lab, step: str) -> Manifest:
    return Catalog(lab.store).history(step)[-1]


# --- forced --------------------------------------------------------------------------------------


def test_a_forced_step_runs_again_and_the_artifact_it_had_stays(lab: Lab) -> None:
    lab.run(product=lab.product())
    before = newest(lab, "multiply")
    again = run({"product": lab.product()}, lab.store, console=lab.console, force=["multiply"])
    assert journal_lines(lab.journal) == ["numbers", "multiply", "multiply"]
    assert again["product"].manifest.attempt > before.attempt
    assert (Path(lab.store.content_path(before)) / "values.json").exists()
    assert "forced" in lab.printed()
    assert lab.run(product=lab.product()) == []


def test_what_follows_a_forced_step_reruns_only_if_it_made_something_else(
    lab: Lab,
) -> None:
    def roots() -> dict[str, Step]:
        changing = stamp(lab.numbers(), lab.journal)
        return {"same": add([lab.product()], lab.journal), "other": add([changing], lab.journal)}

    run(roots(), lab.store, console=lab.console)
    before = len(journal_lines(lab.journal))
    run(roots(), lab.store, console=lab.console, force=["multiply", "stamp"])
    assert sorted(journal_lines(lab.journal)[before:]) == ["add", "multiply", "stamp"]
    assert lab.run(**roots()) == []


def test_a_step_is_forced_by_the_name_that_the_plan_shows(lab: Lab) -> None:
    """The key of what follows it is another by the time that it has run."""

    def roots() -> dict[str, Step]:
        changing = [stamp(lab.numbers()[part], lab.journal) for part in ("train", "test")]
        return {"one": add(changing[:1], lab.journal), "other": add(changing[1:], lab.journal)}

    made = run(roots(), lab.store, console=lab.console)
    before = len(journal_lines(lab.journal))
    stamped = made["one"].manifest.inputs[0]
    force = [f"stamp@{stamped.key[:8]}", made["one"].name]
    again = run(roots(), lab.store, console=lab.console, force=force)
    assert journal_lines(lab.journal)[before:] == ["stamp", "add"]
    assert again["one"].manifest.inputs[0].digest != stamped.digest
    assert again["other"].manifest == made["other"].manifest
    with pytest.raises(TemperError, match=r"force: there is no step add@0123 .*it has: "):
        make_plan(roots(), lab.store, force=["add@0123"])


# --- evicted -------------------------------------------------------------------------------------


def test_what_was_made_from_an_evicted_artifact_stays_cached(lab: Lab) -> None:
    lab.run(product=lab.product())
    lab.store.evict(newest(lab, "numbers"))
    assert lab.run(product=lab.product()) == []


def test_an_evicted_artifact_is_made_again_for_the_step_that_needs_it(
    lab: Lab,
) -> None:
    lab.run(sum=add([lab.product()], lab.journal))
    lab.store.evict(newest(lab, "numbers"))
    lab.store.evict(newest(lab, "multiply"))
    states = lab.states(sum=add([lab.product(Times(3))], lab.journal))
    assert states["numbers"] is State.RUN
    ran = lab.run(old=add([lab.product()], lab.journal), new=lab.product(Times(3)))
    assert ran == ["numbers", "multiply"], "the evicted product is needed by nobody"


def test_an_evicted_result_is_made_again(lab: Lab) -> None:
    lab.run(product=lab.product())
    lab.store.evict(newest(lab, "multiply"))
    assert lab.reasons(product=lab.product())["multiply"] == "its data is evicted; it is a result"
    assert lab.run(product=lab.product()) == ["multiply"]
    assert lab.run(product=lab.product()) == []


def test_what_a_step_makes_of_an_evicted_key_may_differ_and_is_told_apart(
    lab: Lab,
) -> None:
    """A step that gives other bytes each time: what follows is made from what there is."""

    def roots(more: int) -> dict[str, Step]:
        changing = stamp(lab.numbers(), lab.journal)
        return {"sum": add([changing] * more, lab.journal), "one": add([changing], lab.journal)}

    run(roots(2), lab.store, console=lab.console)
    lab.store.evict(newest(lab, "stamp"))
    made = run(roots(3), lab.store, console=lab.console)
    total = {name: made[name].metrics["total"] for name in made}
    assert total["sum"] == 3 * total["one"], "the two results are of two different stamps"


# --- adopted -------------------------------------------------------------------------------------


def test_files_made_elsewhere_are_adopted_by_content(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "values.json").write_text("[5, 6]")

    def total() -> Step:
        return add([adopt(str(tmp_path / "mine"))], lab.journal)

    made = run({"total": total()}, lab.store, console=lab.console)
    assert made["total"].metrics == {"total": 11}
    (tmp_path / "mine").rename(tmp_path / "moved")
    moved = add([adopt(str(tmp_path / "moved"))], lab.journal)
    assert lab.run(total=moved) == []
    (tmp_path / "moved" / "values.json").write_text("[5, 7]")
    lab.numbers()
    assert lab.run(total=add([adopt(str(tmp_path / "moved"))], lab.journal)) == ["add"]


def test_a_pinned_output_stands_for_the_step_that_would_make_it(
    lab: Lab,
    tmp_path: Path,
) -> None:
    lab.run(product=lab.product(), sum=add([lab.product()], lab.journal))
    here = lab.store.content_path(newest(lab, "multiply"))
    pinned = lab.product(Times(99)).at(here)
    assert lab.run(sum=add([pinned], lab.journal)) == [], "same content, so the same sum"
    assert pinned.kind is lab.product().kind


# --- retried -------------------------------------------------------------------------------------


def test_a_step_is_retried_as_often_as_it_declares(lab: Lab) -> None:
    assert lab.run(flaky=flaky(2, lab.journal)) == ["flaky", "flaky", "flaky"]
    with pytest.raises(RunFailed):
        lab.run(flaky=flaky(3, lab.journal))


# --- growing -------------------------------------------------------------------------------------


def test_a_parameter_added_later_leaves_old_keys_as_they_were(lab: Lab) -> None:
    def body(out: Output, values: Any, factor: int) -> None: ...

    def grown(out: Output, values: Any, factor: int, clip: float | None = 5.0) -> None: ...

    grown.__qualname__ = body.__qualname__ = grown.__name__ = body.__name__ = "scale"
    before = step(version="1")(body)(lab.numbers(), 2)
    after = step(version="1", added={"clip": None})(grown)
    assert after(lab.numbers(), 2, clip=None).fingerprint == before.fingerprint
    assert after(lab.numbers(), 2).fingerprint != before.fingerprint, "5.0 is not what it was"
    with pytest.raises(TemperError, match=r"added=\['clop'\] are no parameters"):
        step(version="1", added={"clop": None})(grown)


# --- several at once -----------------------------------------------------------------------------


def test_the_plan_says_who_is_making_a_step(lab: Lab) -> None:
    lab.run(numbers=lab.numbers())
    planned = make_plan({"p": lab.product()}, lab.store).steps[-1]
    assert planned.key is not None
    leases = Leases(lab.store.objects, lab.store.root, run="another-run")
    with leases.held("multiply", planned.key, lambda: False):
        blocked = make_plan({"p": lab.product()}, lab.store).steps[-1]
        assert blocked.state is State.BLOCKED
        assert "another-run" in blocked.reason
    assert make_plan({"p": lab.product()}, lab.store).steps[-1].state is State.RUN


# --- the index -----------------------------------------------------------------------------------


def index_of(lab: Lab, step: str) -> Path:
    return Path(lab.store.root) / "index" / f"{step}.json"


def test_a_lost_stale_or_damaged_index_only_costs_time(lab: Lab) -> None:
    lab.run(product=lab.product())
    assert index_of(lab, "multiply").exists()
    whole = index_of(lab, "multiply").read_text()
    for damaged in ("{not json", "", "[]", whole[:-9], whole.replace("multiply", "multiplY", 1)):
        index_of(lab, "multiply").write_text(damaged)
        assert lab.run(product=lab.product()) == []
        assert index_of(lab, "multiply").read_text() == whole, "it was not written anew"
    index_of(lab, "numbers").unlink()
    assert lab.run(product=lab.product()) == []


def test_a_copy_in_the_index_is_not_used_for_a_manifest_that_was_replaced(
    lab: Lab,
) -> None:
    """A manifest deleted by hand and committed again with other content."""

    def roots() -> dict[str, Step]:
        return {"sum": add([stamp(lab.numbers(), lab.journal)], lab.journal)}

    lab.run(**roots())
    old = newest(lab, "stamp")
    stale = index_of(lab, "stamp").read_bytes()
    Path(lab.store.manifest_path("stamp", old.key)).unlink()
    assert lab.run(**roots()) == ["stamp", "add"]
    index_of(lab, "stamp").write_bytes(stale)
    assert Catalog(lab.store).latest("stamp", old.key) == newest(lab, "stamp")
    assert newest(lab, "stamp").digest != old.digest
