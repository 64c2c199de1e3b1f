"""The caching contract, attacked: random DAGs, edits, losses and crashes against a trivial model.

An example is a DAG and a history of transitions: some edits, then a run. After each run, what was
executed must be exactly what the model says (no false hit, no needless rerun), and what lies in
the store for each root must be what the model computes.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from contract_edits import (
    Accept,
    Corrupt,
    CutFile,
    Declare,
    Edit,
    EditCode,
    EditDefault,
    EditDetails,
    EditFile,
    EditSetting,
    Evict,
    Forget,
    Grow,
    LoseFile,
    MoveFiles,
    Refactor,
    Rephrase,
    Revert,
    Rewire,
    SpoilIndex,
    ToggleNested,
    Transition,
    histories,
)
from contract_lab import Crash, Lab, Outcome, Stage, new_lab
from contract_model import Identity, Model, Node, World
from contract_mutants import MUTANTS
from hypothesis import HealthCheck, Phase, given, settings
from rich.console import Console
from toy_steps import journal_lines, numbers, parity

from pipeline import File, Step, Store, look_again, run
from pipeline.plan.planning import State


class Contract:
    """Runs histories; counts what it has seen, and notes which kinds of edits and crashes."""

    def __init__(self) -> None:
        self.transitions = 0
        self.executed = 0
        self.crashes = 0
        self.kinds: set[object] = set()

    def hold(self, world: World, history: list[Transition]) -> None:
        """
        Raises:
            AssertionError: a run does other than the model.
        """
        model, past = Model(), [world]
        with new_lab() as lab:
            lab.show(world)
            self._run(world, model, lab, Transition())
            for transition in history:
                for edit in transition.edits:
                    if isinstance(edit, Revert):
                        world = past[max(len(past) - 1 - edit.back, 0)]
                    world = edit.write(world)
                lab.show(world, transition.sneaky)
                for edit in transition.edits:
                    edit.strike(world, model, lab)
                    self.kinds.add(type(edit))
                self._run(world, model, lab, transition)
                past.append(world)

    def _run(self, world: World, model: Model, lab: Lab, transition: Transition) -> None:
        self.transitions += 1
        present = {world.nodes[number].function for number in _needed(world, world.roots)}
        forced = present & {str(transition.force)}
        planned = model.copy().run(world, forced)
        outcome = lab.run(world, forced, transition.crash)
        self.executed += len(outcome.executed)
        open_to_choice = _needed_by_twins(world, outcome)
        if outcome.crashed:
            assert transition.crash is not None, "the run failed"
            self.crashes += 1
            self.kinds.add(transition.crash.stage)
            assert set(outcome.executed) <= {*planned, *open_to_choice}, "executed needlessly"
            assert len(outcome.executed) <= len(outcome.committed) + 1
            _learn(model, outcome, lab)
            return
        assert set(outcome.executed) ^ set(planned) <= open_to_choice
        assert len(set(outcome.executed)) == len(outcome.executed), "executed twice"
        _check_plan(world, outcome, model)
        _learn(model, outcome, lab)
        for root, content in outcome.contents.items():
            made = model.artifact(world, world.identity(root))
            if made is None or not model.damaged[made]:
                assert content == world.identity(root).content


def _needed_by_twins(world: World, outcome: Outcome) -> set[Identity]:
    """What only some of the steps with one identity need. Which of them makes it, and so whether
    what one of them needs is made again for that, is not for the model to say."""
    assert outcome.plan is not None
    numbers = [planned.step.arguments["run"].node for planned in outcome.plan.steps]
    steps = Counter(map(world.identity, numbers))
    twins = [number for number in numbers if steps[world.identity(number)] > 1]
    read = [upstream for number in twins for upstream, _ in world.nodes[number].inputs]
    return {world.identity(number) for number in _needed(world, read)}


def _check_plan(world: World, outcome: Outcome, before: Model) -> None:
    """What the plan said would run did. All that ran, the plan had said or not ruled out; but for
    inputs without their bytes of steps that may run."""
    assert outcome.plan is not None
    said: dict[State, set[Identity]] = {State.RUN: set(), State.MAYBE: set()}
    for planned in outcome.plan.steps:
        if planned.state in said:
            node = planned.step.arguments["run"].node
            state = State.MAYBE if planned.may_match else planned.state
            said[state].add(world.identity(node))
    ran = set(outcome.executed)
    lost = before.gone | {identity for identity, parts in before.damaged.items() if parts}
    assert said[State.RUN] <= ran, "the plan said that it would run"
    assert ran <= said[State.RUN] | said[State.MAYBE] | lost, "the plan did not say so"


def _learn(model: Model, outcome: Outcome, lab: Lab) -> None:
    """What a run has left."""
    for identity in outcome.committed:
        model.commit(identity)
    for identity, parts in model.damaged.items():
        if parts and lab.is_marked_damaged(identity):
            model.gone.add(identity)


def _needed(world: World, wanted: Iterable[int]) -> set[int]:
    needed, waiting = set(), list(wanted)
    while waiting:
        number = waiting.pop()
        needed.add(number)
        waiting += [upstream for upstream, _ in world.nodes[number].inputs]
    return needed


def attack(examples: int, *phases: Phase) -> Contract:
    """Try histories until one breaks the contract.

    Raises:
        AssertionError: one does; the message tells the smallest that was found.
    """
    contract = Contract()

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        deadline=None,
        phases=phases or (Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(histories())
    def break_it(case: tuple[World, list[Transition]]) -> None:
        contract.hold(*case)

    break_it()
    return contract


@pytest.mark.slow
def test_what_runs_is_what_the_contract_says(capsys: pytest.CaptureFixture[str]) -> None:
    """``pytest --hypothesis-profile=attack`` tries a hundred times as many."""
    contract = attack(settings().max_examples // (4 if _attacks() else 5))
    with capsys.disabled():
        print(
            f"\n{contract.transitions} transitions, {contract.executed} steps executed, "
            f"{contract.crashes} crashes"
        )
    assert contract.transitions >= 60
    if _attacks():
        assert contract.kinds == {*Stage, *_kinds_of(Edit)}


def _attacks() -> bool:
    return settings().max_examples > 100


def _kinds_of(kind: type) -> set[type]:
    kinds = kind.__subclasses__()
    return {leaf for narrower in kinds for leaf in _kinds_of(narrower)} if kinds else {kind}


LOAD, SCALED = Node("load"), Node("scale", ((0, None),))
NESTED = Node("scale", ((0, None),), nested=True)
FOUND = {
    "a result without its data, whose inputs were made again": (
        World((LOAD, SCALED), (1,)),
        [Transition((Evict(1),), force="load")],
    ),
    "an input without its data, of accepted code that needs not run": (
        World((LOAD, SCALED, Node("load", source=1), Node("merge", ((1, None), (2, None)))), (3,)),
        [Transition((Refactor("merge", 1), Accept(3), Evict(2)), force="scale")],
    ),
    "a step whose input is what it makes": (
        World((LOAD, Node("merge", ((0, "low"),)), Node("merge", ((1, "low"),))), (2,)),
        [Transition((Evict(1),))],
    ),
    "a result that two steps would make, one of an input without its data": (
        World((LOAD, SCALED, NESTED, Node("scale", ((1, None),), nested=True)), (3, 2)),
        [Transition((Evict(0), EditCode("inner method", 1)))],
    ),
}
"""Histories in which something went wrong once."""


PAIR = World((LOAD, SCALED, Node("fold", ((1, None), (0, None)))), (2,))


@pytest.mark.parametrize("stage", Stage)
def test_after_a_crash_at_any_stage_a_run_goes_on(stage: Stage) -> None:
    contract = Contract()
    edited = Transition((EditFile(0, (1, 2)),), crash=Crash(stage, 1))
    contract.hold(PAIR, [edited, Transition(), Transition()])
    assert contract.crashes == 1
    assert stage in contract.kinds


EDITS: list[Edit] = [
    EditCode("scale", 1), Refactor("scale", 1), Accept(1), Rephrase("lab_steps", 1),
    EditDefault("factor", 2), EditSetting(1, "factor", 3), ToggleNested(1), EditDetails(1),
    EditFile(0, (1, 2)), MoveFiles(), Grow("extra", 0), Declare(2), Rewire((2, 0)), Revert(2),
    Evict(1), LoseFile(1, "low"), CutFile(1, "high"), Corrupt(1, "low"), Forget(1),
    SpoilIndex("{}"),
]  # fmt: skip


def test_after_each_kind_of_edit_runs_what_has_to_and_nothing_else() -> None:
    """One after the other, and each needed afterwards, so that it is seen what was lost."""
    contract, forced = Contract(), Transition(force="fold")
    contract.hold(PAIR, [then for edit in EDITS for then in (Transition((edit,)), forced)])
    assert contract.kinds >= _kinds_of(Edit)


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_once_stays_found(name: str) -> None:
    Contract().hold(*FOUND[name])


@pytest.mark.parametrize("name", MUTANTS)
def test_what_breaks_the_contract_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the history that it has; where it has none, the attack finds it, and fails with it."""
    mutant = MUTANTS[name]
    if mutant.history is None:
        mutant.mutate(monkeypatch)
        attack(5 * settings().max_examples)
        pytest.fail("the attack does not notice it")
    Contract().hold(*mutant.history)
    mutant.mutate(monkeypatch)
    with pytest.raises(AssertionError):
        Contract().hold(*mutant.history)


def test_a_run_gives_no_result_without_its_data(
    store: Store, tmp_path: Path, console: Console
) -> None:
    """Also where its key was not known when the run was planned."""
    source, journal = tmp_path / "numbers.txt", str(tmp_path / "journal.txt")

    def roots() -> dict[str, Step]:
        look_again()
        return {"parity": parity(numbers(File(str(source)), journal)["train"], journal)}

    source.write_text("1 2 3")
    made = run(roots(), store, console=console)
    store.evict(made["parity"].manifest)
    source.write_text("1 4 3")  # another test part: the train part is made again as it was
    again = run(roots(), store, console=console)
    assert store.lost_files(again["parity"].manifest) == []
    assert journal_lines(journal) == ["numbers", "parity", "numbers", "parity"]
