"""Ways in which a wrong result could be served or made, each held."""

import dataclasses
import json
import os
import subprocess
import sys
from collections import OrderedDict, UserDict
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any

import blake3
import pytest
from numbers_lab import Lab
from toy_steps import Times, add, journal_lines, list_files, misbehave, multiply
from waiting import HANGS_SECONDS

from pipeline import Step, TemperError, added_field, adopt, look_again, run, step
from pipeline.dag.canonical import identity, portable
from pipeline.running.session import RunFailed
from pipeline.store.catalog import Catalog

pytestmark = pytest.mark.usefixtures("workers_here")

PROJECT = """
from pipeline import Output, run, step
import helper
@step
def say(out: Output):
    (out.path / "said.txt").write_text(helper.TEXT)
    return {{"said": helper.TEXT}}
if __name__ == "__main__":
    print(run([say()], {store!r})["say"].metrics["said"])
"""


def run_project(folder: Path, where: Path | None = None) -> str:
    """Run ``folder/project.py`` as a user does, compiled files and all; the last line it prints."""
    script = folder / "project.py"
    if not script.exists():
        script.write_text(PROJECT.format(store=str(folder / "store")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=where or folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.slow
def test_a_worker_runs_the_source_and_not_what_was_compiled_before(tmp_path: Path) -> None:
    """An edit of the same size whose time is put back: Python itself would not see it."""
    helper = tmp_path / "helper.py"
    for text in ("one", "two"):
        helper.write_text(f"TEXT = {text!r}\n")
        os.utime(helper, (10**9, 10**9))
        run_project(tmp_path)
    texts = {p.read_text() for p in (tmp_path / "store").glob("attempts/say/*/*/content/said.txt")}
    assert texts == {"one", "two"}


def test_a_worker_imports_what_the_driver_imports_wherever_it_is_started(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("TEXT = 'mine'\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "helper.py").write_text("TEXT = 'of another project'\n")
    (elsewhere / "pipeline.py").write_text("raise SystemExit('shadowed')\n")
    run_project(tmp_path, where=elsewhere)
    (made,) = (tmp_path / "store").glob("attempts/say/*/*/content/said.txt")
    assert made.read_text() == "mine"


# --- arguments -----------------------------------------------------------------------------------


@dataclass
class Open:
    """A config that can be changed after it was passed."""

    factor: int = 1


@step(version="1")
def scaled(out: Any, config: Open, journal: str) -> dict:
    return {"factor": config.factor}


def test_an_argument_is_what_it_was_at_the_call(lab: Lab) -> None:
    config, steps = Open(), {}
    for factor in (1, 2, 3):
        config.factor = factor
        steps[str(factor)] = scaled(config, lab.journal)
    made = run(steps, lab.store, console=lab.console)
    assert [m.metrics["factor"] for m in made.values()] == [1, 2, 3]


@dataclass(frozen=True)
class WithInitVar:
    scale: InitVar[int] = 1


@dataclass
class WithDerived:
    rate: float = 0.1
    doubled: float = field(init=False)

    def __post_init__(self) -> None:
        self.doubled = 2 * self.rate


def test_what_a_worker_could_not_rebuild_is_refused() -> None:
    with pytest.raises(TemperError, match=r"config: WithInitVar has an InitVar"):
        identity(WithInitVar(5), "config")
    changed = WithDerived()
    identity(changed, "config")
    changed.doubled = 0.9
    with pytest.raises(TemperError, match=r"config.doubled: "):
        portable(changed, "config")
    with pytest.raises(TemperError, match="no stable identity"):
        identity(UserDict(a=1), "config")
    assert identity(OrderedDict(a=1), "config") == {"$ordered": [["a", 1]]}


@dataclass(frozen=True)
class Grown:
    take: Any = added_field(1.0, before=1.0)  # noqa: RUF009


@pytest.mark.parametrize("value", [1, True, "1.0"])
def test_what_merely_equals_the_value_before_is_another_value(value: Any) -> None:
    def encoded(take: Any) -> str:
        return json.dumps(identity(Grown(take), "config"))

    assert encoded(value) != encoded(1.0)


def test_a_text_is_not_taken_for_a_file(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Source:
        path: Path

    def body(out: Any, source: Path, more: Source | None = None) -> None: ...

    read = step(version="1")(body)
    with pytest.raises(TemperError, match=r"body\(source\) takes Path.*pass File\('rows.txt'\)"):
        read("rows.txt")


# --- what lies in the store ----------------------------------------------------------------------


def manifests(lab: Lab, step: str) -> list[Path]:
    return sorted((Path(lab.store.root) / "manifests" / step).glob("*.json"))


def test_a_manifest_in_the_place_of_another_is_not_served(lab: Lab) -> None:
    lab.run(a=lab.product(Times(2)), b=lab.product(Times(3)))
    one, other = manifests(lab, "multiply")
    other.write_bytes(one.read_bytes())
    with pytest.raises(TemperError, match=r"is damaged \(it is the manifest of .*delete it"):
        lab.run(a=lab.product(Times(2)), b=lab.product(Times(3)))


def test_a_manifest_that_contradicts_itself_is_not_served(lab: Lab) -> None:
    lab.run(product=lab.product())
    (path,) = manifests(lab, "multiply")
    data = json.loads(path.read_text())
    changed = {"digest": "0" * 32, "recipe": {}, "files": {}, "metrics": [1], "attempt": 5}
    for text in (*(json.dumps({**data, n: v}) for n, v in changed.items()), '{"step": "numb'):
        path.write_text(text)
        with pytest.raises(TemperError, match=r"multiply/.*\.json is damaged"):
            lab.run(product=lab.product())


def test_an_altered_copy_in_the_index_is_not_used(lab: Lab) -> None:
    lab.run(product=lab.product())
    index = Path(lab.store.root) / "index" / "multiply.json"
    copies = json.loads(index.read_bytes().partition(b"\n")[2])
    for name in copies.keys() - {"traces"}:
        copies[name]["manifest"]["digest"] = "0" * 32
    altered = json.dumps(copies).encode()
    index.write_bytes(blake3.blake3(altered).hexdigest().encode() + b"\n" + altered)
    assert lab.run(product=lab.product()) == []


def test_a_file_that_somebody_put_into_an_artifact_is_not_read(lab: Lab) -> None:
    lab.run(product=lab.product())
    made = Catalog(lab.store).history("numbers")[0]
    (Path(lab.store.content_path(made)) / "train" / "zzz.json").write_text("[99]")
    listed = run([list_files(lab.numbers()["train"], lab.journal)], lab.store, console=lab.console)
    assert listed["list_files"].metrics == {"names": "values.json"}
    assert "holds 'zzz.json' besides" in lab.printed()


def test_two_adopted_files_of_equal_content_keep_their_names(lab: Lab, tmp_path: Path) -> None:
    for name in ("old.json", "new.json"):
        (tmp_path / name).write_text("[1]")
        listed = list_files(adopt(str(tmp_path / name)), lab.journal)
        made = run([listed], lab.store, console=lab.console)
        assert made["list_files"].metrics == {"names": name}


# --- bad use -------------------------------------------------------------------------------------


def test_one_step_is_no_list_of_steps(lab: Lab) -> None:
    with pytest.raises(TemperError, match=r"run\(multiply\): give the steps .* as a list"):
        run(lab.product(), lab.store)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        list(lab.product())  # type: ignore[call-overload]
    with pytest.raises(TemperError, match="a part is a folder's name"):
        lab.numbers()[0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"version": 1}, "version=1; give a text"),
        ({"version": ""}, "version=''; give a text"),
        ({"makes": "Model"}, "makes='Model' is no kind"),
        ({"makes": dict}, "makes=.*dict.* is no kind"),
        ({"retries": -1}, "retries=-1"),
        ({"added": ["x"]}, "added="),
        ({"cache": True}, "no option cache"),
    ],
)
def test_a_wrong_declaration_is_refused(settings: dict[str, Any], message: str) -> None:
    def body(out: Any) -> None: ...

    with pytest.raises(TemperError, match=message):
        step(**settings)(body)


def test_what_is_no_plain_function_is_refused() -> None:
    async def later(out: Any) -> None: ...

    def many(out: Any) -> Any:
        yield 1

    for function in (later, many, 5):
        with pytest.raises(TemperError, match=r"plain function|no function"):
            step(function)  # type: ignore[call-overload]


@pytest.mark.parametrize("how", ["remove", "replace"])
def test_an_output_folder_that_is_gone_makes_no_artifact(lab: Lab, how: str) -> None:
    with pytest.raises(RunFailed):
        lab.run(bad=misbehave(how))
    assert "the step removed its output folder" in lab.printed()
    assert Catalog(lab.store).history("misbehave") == []


def test_files_are_seen_afresh_after_a_run(lab: Lab) -> None:
    """In one process, as in a notebook."""

    def total() -> Step:
        return add([multiply(lab.numbers_again()["train"], Times(1), lab.journal)], lab.journal)

    assert run([total()], lab.store, console=lab.console)["add"].metrics == {"total": 4}
    lab.source.write_text("5 7")
    assert run([total()], lab.store, console=lab.console)["add"].metrics == {"total": 12}
    assert "numbers" in journal_lines(lab.journal)
    look_again()
