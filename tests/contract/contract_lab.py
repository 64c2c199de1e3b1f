"""Where a :class:`~contract_model.World` becomes real: modules and files on disk, a store, runs.

Everything here is Temper's own but the launcher, which calls the worker in this process instead of
starting one, so that thousands of runs take a minute. The generated modules are written to disk
and imported anew after an edit, as a new process would import them. Each step notes in a journal
outside the store that it was executed.
"""

import ast
import contextlib
import enum
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import IO, Any

from contract_model import BEFORE, FOLDER, MODULES, PARTS, Content, Identity, Node, World
from workers_here import InThisProcess, run_here

from pipeline import File, Store, look_again
from pipeline.dag import digests
from pipeline.dag.step import Step
from pipeline.launchers.placement import Placement
from pipeline.plan.planning import Plan, make_plan, topological
from pipeline.plan.resolver import Resolver
from pipeline.running.attempts import Executor, InputLost, StepFailed
from pipeline.store.catalog import Catalog
from pipeline.store.layout import DataLoss
from pipeline.store.lease import Leases
from pipeline.store.manifest import Manifest
from pipeline.wire.launcher import Ended, Task

STRIKE = "LAB_STRIKE"
"""Set for a step that is to end in the middle of writing: ``killed`` or ``fails``."""

# --- the generated code --------------------------------------------------------------------------

CONFIG = """
import enum
from dataclasses import dataclass

from pipeline import added_field, execution_detail


class Mode(enum.Enum):
    PLAIN = 0 + <enum>
    SHIFTED = 1 + <enum>


@dataclass(frozen=True)
class Inner:
    gain: int = <gain>
    label: str = execution_detail("")

    def boost(self):
        return self.gain + <inner method>


@dataclass(frozen=True)
class Scale:
    factor: int = <factor>
    mode: Mode = Mode.<mode>
    inner: Inner | None = None
    workers: int = execution_detail(1)
    <extra field>

    def apply(self, value):
        return (value +
                self.factor) + <method>


@dataclass(frozen=True)
class Journal:
    path: str = execution_detail("")
    node: int = execution_detail(0)
"""

HELPERS = """
import functools

import lab_constants as constants


def noted(function):
    @functools.wraps(function)
    def wrapper(*args):
        return ( function(*args) + <decorator> )
    return wrapper


@noted
def measure():
    return <decorated>


def weigh():
    return <helper> + measure()


def offset():
    return [constants.OFFSET][0]


def never_called():
    return <unrelated>


TABLE = {}
TABLE["row"] = <table>
"""

CONSTANTS = """
OFFSET = <constant>


SPARE = (<unrelated>,
         1)
"""

FILES = """
import json
import os
from pathlib import Path


def numbers(url):
    path = Path(url)
    files = [path] if path.is_file() else sorted(path.iterdir())
    return [int(word) for file in files for word in file.read_text().split()]


def read(folder):
    files = sorted(folder.rglob("*.json"))
    return [value for file in files for value in json.loads(file.read_text())]


def begin(out, run, total):
    with open(run.path, "a") as file:
        file.write(f"{run.node}\\n")
    kept = out.scratch / "total.txt"
    if kept.exists() and kept.read_text() != str(total):
        raise RuntimeError("another key's scratch")
    kept.write_text(str(total))


def save(out, values, total):
    made = [(value + total) % 3 for value in values[:6]]
    parts = {
        "low": [value for value in made if value == 0],
        "high": [value for value in made if value != 0],
    }
    for name, part in parts.items():
        (out.path / name).mkdir()
        (out.path / name / "values.json").write_text(json.dumps(part))
        strike = os.environ.pop("LAB_STRIKE", None)
        if strike == "killed":
            raise KeyboardInterrupt
        if strike == "fails":
            raise ValueError("struck")
    return {"total": total}
"""

STEPS = """
import lab_config
import lab_files
import lab_helpers

from pipeline import Artifact, File, Output, step


@step
def load(out: Output, source: File, run: lab_config.Journal, start: int = <start>) -> dict:
    total = <load> + lab_helpers.weigh() + start<load refactored>
    lab_files.begin(out, run, total)
    return lab_files.save(out, lab_files.numbers(source.url), total)


@step
def scale(out: Output, values: Artifact, run: lab_config.Journal, config: lab_config.Scale) -> dict:
    total = <scale> + config.apply(0) + config.mode.value + getattr(config, "extra", 0)
    if config.inner is not None:
        total += config.inner.boost()
    total = total<scale refactored>
    lab_files.begin(out, run, total)
    return lab_files.save(out, lab_files.read(values.path), total)


@step(<merge added>)
def merge(
    out: Output, terms: list[Artifact], run: lab_config.Journal, shift: int = <shift><merge bonus>
) -> dict:
    total = <merge> + lab_helpers.offset() + lab_helpers.TABLE["row"] + shift
    total = total<merge plus><merge refactored>
    lab_files.begin(out, run, total)
    values = []
    for position, term in enumerate(terms):
        values += [(1 + position) * value for value in lab_files.read(term.path)]
    return lab_files.save(out, values, total)


@step(version="<version>"<fold added>)
def fold(out: Output, left: Artifact, right: Artifact, run: lab_config.Journal<fold bonus>) -> dict:
    total = <version><fold plus><fold refactored>
    lab_files.begin(out, run, total)
    values = lab_files.read(left.path) + [2 * value for value in lab_files.read(right.path)]
    return lab_files.save(out, values, total)
"""

TEMPLATES = dict(zip(MODULES, (CONFIG, HELPERS, CONSTANTS, FILES, STEPS), strict=True))


def sources(world: World) -> dict[str, str]:
    """The text of each module."""
    blanks: dict[str, Any] = {name: world.code.get(name, 0) for name in _units_in_templates()}
    blanks |= {name: world.defaults.get(name, 0) for name in ("start", "factor", "gain", "shift")}
    blanks["mode"] = ("PLAIN", "SHIFTED")[world.defaults.get("mode", 0)]
    blanks["version"] = world.version
    for function in ("load", "scale", "merge", "fold"):
        phrased = world.refactored.get(function, 0)
        blanks[f"{function} refactored"] = f" + 0 * {phrased}" if phrased else ""
    extra = world.added.get("extra")
    blanks["extra field"] = (
        "" if extra is None else f"extra: int = added_field({extra}, before={BEFORE})"
    )
    for function in ("merge", "fold"):
        bonus = world.added.get(f"{function} bonus")
        comma = ", " if function == "fold" else ""
        added = f'{comma}added={{"bonus": {BEFORE}}}'
        blanks[f"{function} added"] = "" if bonus is None else added
        blanks[f"{function} bonus"] = "" if bonus is None else f", bonus: int = {bonus}"
        blanks[f"{function} plus"] = "" if bonus is None else " + bonus"
    return {
        module: _phrased(_filled(template, blanks), world.phrasing.get(module, 0))
        for module, template in TEMPLATES.items()
    }


def _units_in_templates() -> list[str]:
    units = ("load", "scale", "merge", "helper", "decorator", "decorated", "method", "inner method")
    return [*units, "enum", "constant", "table", "unrelated"]


def _filled(template: str, blanks: dict[str, Any]) -> str:
    for name, value in blanks.items():
        template = template.replace(f"<{name}>", str(value))
    return template


def _phrased(text: str, phrasing: int) -> str:
    """The same code with other comments (1) and another layout (2)."""
    if phrasing & 2:
        text = ast.unparse(ast.parse(text)) + "\n"
    if phrasing & 1:
        lines = [f"{line}  # said once more" if line.strip() else line for line in text.split("\n")]
        text = "# A remark.\n" + "\n".join(lines)
    return text


# --- crashes -------------------------------------------------------------------------------------


class Stage(enum.Enum):
    """Where a driver dies, or the step fails."""

    BEFORE_START = enum.auto()
    MID_WRITE = enum.auto()
    STEP_FAILS = enum.auto()
    AFTER_REPORT = enum.auto()
    BEFORE_MANIFEST = enum.auto()
    AFTER_MANIFEST = enum.auto()

    __repr__ = enum.Enum.__str__  # as one would write it

    @property
    def commits(self) -> bool:
        return self is Stage.AFTER_MANIFEST


@dataclass(frozen=True)
class Crash:
    """The driver dies at the step that it executes after ``after`` others."""

    stage: Stage
    after: int


class Died(BaseException):
    """The driver is gone: nothing in it may go on."""


@dataclass
class _Strikes:
    """Counts executions and says when the crash comes."""

    crash: Crash | None
    started: int = 0

    def at(self, *stages: Stage) -> bool:
        due = self.crash is not None and self.started == self.crash.after
        return due and self.crash is not None and self.crash.stage in stages


@dataclass
class InProcessLauncher(InThisProcess):
    """Runs a worker in this process."""

    strikes: _Strikes

    def run(self, task: Task, log: IO[bytes], stop: Event) -> Ended:
        strikes = self.strikes
        if strikes.at(Stage.BEFORE_START):
            raise Died
        if strikes.at(Stage.MID_WRITE, Stage.STEP_FAILS):
            os.environ[STRIKE] = "killed" if strikes.at(Stage.MID_WRITE) else "fails"
        known = {name: sys.modules.pop(name) for name in MODULES}  # a worker imports by itself
        try:
            ended = run_here(task, log)
        except KeyboardInterrupt:
            raise Died from None
        finally:
            os.environ.pop(STRIKE, None)
            sys.modules.update(known)
        if strikes.at(Stage.AFTER_REPORT):
            raise Died
        return ended


class MortalStore(Store):
    """A store whose driver may die in the moment of the commit."""

    strikes: _Strikes = _Strikes(None)
    committed: list[Manifest]

    def commit(self, manifest: Manifest) -> Manifest:
        if self.strikes.at(Stage.BEFORE_MANIFEST):
            raise Died
        committed = super().commit(manifest)
        self.committed.append(committed)
        if self.strikes.at(Stage.AFTER_MANIFEST):
            raise Died
        self.strikes.started += 1
        return committed


# --- the lab -------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a run did.

    Attributes:
        executed: identities in the order in which they were executed.
        committed: those of them that the run committed.
        contents: what lies in the store for each root, by its number.
    """

    executed: list[Identity]
    committed: list[Identity]
    crashed: bool
    contents: dict[int, Content] = field(default_factory=dict)
    plan: Plan | None = None


@contextlib.contextmanager
def new_lab() -> Iterator["Lab"]:
    """A lab in a folder of its own, in memory where the machine has such a folder."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="lab-", dir=memory) as folder:
        lab = Lab(Path(folder))
        with lab.importable():
            yield lab


class Lab:
    """One store, and what an author has on disk."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.code = folder / "code"
        self.code.mkdir()
        self.journal = folder / "journal.txt"
        self.store = MortalStore(str(folder / "store"))
        self.made: dict[Identity, Manifest] = {}
        self._runs = 0
        self._shown: dict[str, str] = {}
        self._files: dict[Path, str] = {}
        self._modules: dict[str, ModuleType] = {}

    @contextlib.contextmanager
    def importable(self) -> Iterator[None]:
        before = sys.dont_write_bytecode, os.environ.get("TEMPER_CACHE")
        kept = digests.KEPT_BYTES, digests.SETTLED_SECONDS, digests._IN_MEMORY
        # that the digests of small files, and of those in memory, are cached too
        digests.KEPT_BYTES, digests.SETTLED_SECONDS, digests._IN_MEMORY = 0, 0.02, ()
        sys.dont_write_bytecode = True
        os.environ["TEMPER_CACHE"] = str(self.folder / "cache")
        sys.path.insert(0, str(self.code))
        try:
            yield
        finally:
            sys.path.remove(str(self.code))
            _forget_modules()
            look_again()
            digests.KEPT_BYTES, digests.SETTLED_SECONDS, digests._IN_MEMORY = kept
            sys.dont_write_bytecode = before[0]
            os.environ.pop("TEMPER_CACHE")
            if before[1] is not None:
                os.environ["TEMPER_CACHE"] = before[1]

    # --- what the author has written ---

    def show(self, world: World, sneaky: bool = False) -> None:
        """Write the world to disk.

        Args:
            sneaky: give edited files the times that they had before.
        """
        changed = False
        for module, text in sources(world).items():
            if self._shown.get(module) != text:
                path = self.code / f"{module}.py"
                path.write_text(text)
                os.utime(path, (1, 1))  # no code is told by its time
                self._shown[module], changed = text, True
        for path, text in self._inputs(world).items():
            if self._files.get(path) != text or not path.exists():
                _write(path, text, sneaky)
        for path in self._files.keys() - self._inputs(world).keys():
            path.unlink(missing_ok=True)
        self._files = self._inputs(world)
        look_again()
        if changed:
            _forget_modules()
            self._modules = {name: importlib.import_module(name) for name in MODULES}

    def _inputs(self, world: World) -> dict[Path, str]:
        found = {}
        for number, values in enumerate(world.files):
            path = self._source(world, number)
            if number == FOLDER:
                found[path / "a.txt"] = _text(values[:1])
                found[path / "b.txt"] = _text(values[1:])
            else:
                found[path] = _text(values)
        return found

    def _source(self, world: World, number: int) -> Path:
        suffix = "" if number == FOLDER else ".txt"
        return self.folder / f"input-{number}-{world.moved}{suffix}"

    def steps(self, world: World) -> list[Step]:
        """The DAG of the world, made with the modules as they are now."""
        made: list[Step] = []
        for number, node in enumerate(world.nodes):
            made.append(self._step(world, number, node, made))
        return made

    def _step(self, world: World, number: int, node: Node, made: list[Step]) -> Step:
        config, functions = self._modules["lab_config"], self._modules["lab_steps"]
        inputs = [made[i] if part is None else made[i][part] for i, part in node.inputs]
        journal = config.Journal(str(self.journal), number)
        given = {
            name: value
            for name, value in node.given.items()
            if name not in ("extra", "merge bonus", "fold bonus") or name in world.added
        }
        bonus = _only({name.split()[-1]: value for name, value in given.items()}, "bonus")
        match node.function:
            case "load":
                source = File(str(self._source(world, node.source)))
                return functions.load(source, journal, **_only(given, "start"))
            case "scale":
                settings: dict[str, Any] = _only(given, "factor", "extra")
                if "mode" in given:
                    settings["mode"] = list(config.Mode)[given["mode"]]
                if node.nested:
                    label = f"label {world.details}"
                    settings["inner"] = config.Inner(label=label, **_only(given, "gain"))
                scale = config.Scale(workers=1 + world.details, **settings)
                return functions.scale(inputs[0], journal, scale)
            case "merge":
                return functions.merge(inputs, journal, **_only(given, "shift"), **bonus)
            case _:
                return functions.fold(*inputs, journal, **bonus)

    # --- a run ---

    def run(
        self, world: World, forced: Collection[str] = (), crash: Crash | None = None
    ) -> Outcome:
        """What ``pipeline.run`` does, step after step in this process, and what came of it."""
        self._runs += 1
        steps = self.steps(world)
        roots = {str(number): steps[number] for number in world.roots}
        self.store.strikes, self.store.committed = _Strikes(crash), []
        before = len(self._noted())
        first: list[Plan] = []
        died = False
        resolver = None
        try:
            resolver = self._drive(roots, forced, f"run-{self._runs}", first)
        except (Died, StepFailed):
            died = True
        executed = [world.identity(number) for number in self._noted()[before:]]
        done = self.store.strikes.started
        if died and crash is not None:
            done += crash.stage.commits
        outcome = Outcome(executed, executed[:done], died, plan=first[0])
        self.made.update(zip(outcome.committed, self.store.committed, strict=True))
        if resolver is not None:
            for number in world.roots:
                manifest = resolver.artifact(steps[number])
                assert manifest is not None, "a run that did not crash has every root"
                outcome.contents[number] = self._content(manifest)
        return outcome

    def _drive(
        self, roots: dict[str, Step], forced: Collection[str], run: str, first: list[Plan]
    ) -> Resolver:
        self.store.prepare()
        catalog = Catalog(self.store)
        launcher = InProcessLauncher(self.store.strikes)
        leases = Leases(self.store.objects, self.store.root, run)
        order = topological(roots.values())
        for _ in range(20):
            plan = make_plan(roots, self.store, forced, catalog, run)
            first.append(plan)
            resolver = Resolver(catalog, plan.unusable, plan.forced, run, live=True)
            if plan.is_complete:
                catalog.save()
                return resolver
            executor = Executor(resolver, Placement([launcher]), leases, {"run": run})
            with contextlib.suppress(InputLost):
                for step in order:
                    if resolver.artifact(step) is None:
                        executor.execute(step)
            catalog.save()
            catalog = Catalog(self.store)
        raise AssertionError("the run finds ever more lost inputs")

    def _noted(self) -> list[int]:
        return [int(line) for line in _lines(self.journal)]

    def _content(self, manifest: Manifest) -> Content:
        """What lies there; not what was committed, where somebody has damaged it."""
        folder = Path(self.store.content_path(manifest))
        found = {}
        for part in PARTS:
            path = folder / part / "values.json"
            text = path.read_text() if path.exists() else "not there"
            found[part] = tuple(json.loads(text)) if text.endswith("]") else (text,)
        return Content(**found)

    # --- what happens to a store ---

    def content_folder(self, identity: Identity) -> Path:
        return Path(self.store.content_path(self.made[identity]))

    def is_marked_damaged(self, identity: Identity) -> bool:
        return Catalog(self.store).loss(self.made[identity]) is DataLoss.DAMAGED


def _only(given: dict[str, int], *names: str) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _forget_modules() -> None:
    for name in MODULES:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def _text(values: tuple[int, ...]) -> str:
    return " ".join(map(str, values)) + "\n"


def _write(path: Path, text: str, sneaky: bool) -> None:
    path.parent.mkdir(exist_ok=True)
    before = path.stat() if path.exists() else None
    path.write_text(text)
    if sneaky and before is not None:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
