"""``temper`` as a user meets it: on stores that real runs have made."""

import io
import json
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import command_line
import pytest
from manifests import manifest
from numbers_lab import Lab, end, start_held_driver
from own_script import TEMPER
from rich.console import Console
from toy_steps import Times, add, fail, slow_count
from typer.main import get_command
from typer.testing import CliRunner, Result
from waiting import HANGS_SECONDS, wait_until

from pipeline import Store, TemperError, run
from pipeline.cli import app
from pipeline.cli.app import _add_commands_of_packages
from pipeline.dag.canonical import hash_json
from pipeline.running.rounds import SIGN_SECONDS
from pipeline.running.session import RunFailed
from pipeline.store.catalog import Catalog
from pipeline.store.layout import DataLoss
from pipeline.store.lease import Leases
from pipeline.store.manifest import Discovered, Manifest
from pipeline.store.objects import Objects
from pipeline.store.runs import read_runs

pytestmark = pytest.mark.usefixtures("workers_here")


@pytest.fixture(scope="module")
def store_of_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    lab = Lab(folder, Store(str(folder / "store")), Console(file=io.StringIO()))
    lab.run(product=lab.product())
    return folder / "store"


@pytest.fixture
def product(lab: Lab, store_of_a_run: Path) -> None:
    """One that somebody else made lies in the store: for commands that only look, or let go."""
    shutil.copytree(store_of_a_run, lab.store.root)


def call(lab: Lab, *arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"TEMPER_STORE": lab.store.url})


def temper(lab: Lab, *arguments: str) -> str:
    """What a command prints, without its columns' padding."""
    result = call(lab, *arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return "\n".join(" ".join(line.split()) for line in result.output.splitlines())


def refusal(lab: Lab, *arguments: str) -> str:
    result = call(lab, *arguments)
    assert isinstance(result.exception, TemperError), (result.output, result.exception)
    return str(result.exception)


def newest(lab: Lab, step: str) -> Manifest:
    return Catalog(lab.store).history(step)[-1]


def commit(lab: Lab, recipe: Any, **fields: Any) -> Manifest:
    """An artifact of ``train`` as a run would leave it, made up but for its key."""
    made = replace(manifest("one"), recipe=recipe, key=hash_json(recipe), **fields)
    return lab.store.commit(made)


def damage(lab: Lab, made: Manifest, name: str) -> Path:
    """Flip one byte of a file, and leave its size."""
    path = Path(lab.store.content_path(made)) / name
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    return path


# --- looking -------------------------------------------------------------------------------------


def test_artifacts_are_listed_with_what_became_of_them(lab: Lab) -> None:
    lab.run(product=lab.product())
    first = newest(lab, "multiply")
    run({"product": lab.product()}, lab.store, console=lab.console, force=["multiply"])
    lab.store.evict(newest(lab, "numbers"))
    lines = temper(lab, "list").splitlines()[1:]
    assert [line.split()[0] for line in lines] == [
        newest(lab, "numbers").name,
        first.name,
        first.name,
    ]
    assert [line.split()[-1] for line in lines] == ["evicted", "superseded", "bytes"]
    lab.store.mark(newest(lab, "multiply"), DataLoss.DAMAGED)
    assert temper(lab, "list", "multiply").splitlines()[-1].endswith("damaged")
    assert len(temper(lab, "list", "multiply").splitlines()) == 3


def test_the_help_of_every_command_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "registered_commands", [*app.registered_commands])
    _add_commands_of_packages([])
    group: Any = get_command(app)
    for name in group.commands:
        page = CliRunner().invoke(app, [name, "-h"], terminal_width=80).output
        assert max(map(len, page.splitlines())) <= 80, name


def test_a_name_that_means_several_artifacts_is_refused_with_their_names(lab: Lab) -> None:
    made = [commit(lab, {"seed": seed}, attempt=f"try-{seed}") for seed in range(17)]
    by_digit: dict[str, list[Manifest]] = {}
    for one in made:
        by_digit.setdefault(one.key[0], []).append(one)
    digit, alike = next((d, found) for d, found in by_digit.items() if len(found) > 1)
    names = ", ".join(sorted(one.name for one in alike))
    assert f"{names}; give more of the key" in refusal(lab, "show", f"train@{digit}")
    assert f'"{alike[0].attempt}"' in temper(lab, "show", alike[0].name)


@pytest.mark.parametrize("command", ["show", "path", "logs", "explain", "evict", "accept"])
@pytest.mark.usefixtures("product")
def test_a_name_that_means_nothing_is_refused_with_what_there_is(lab: Lab, command: str) -> None:
    assert "no artifact of 'multply'; it has: multiply, numbers" in refusal(lab, command, "multply")


@pytest.mark.parametrize("command", ["list", "runs", "gc", "status", "verify"])
def test_a_place_without_a_store_says_what_to_set(lab: Lab, command: str) -> None:
    assert "there is no store at " in refusal(lab, command)
    (Path(lab.store.root) / "photographs").mkdir(parents=True)
    assert "set --store or TEMPER_STORE" in refusal(lab, command)
    assert [path.name for path in Path(lab.store.root).iterdir()] == ["photographs"]


def test_the_log_of_a_failed_attempt_is_shown(lab: Lab) -> None:
    with pytest.raises(RunFailed):
        lab.run(broken=fail(lab.numbers(), lab.journal))
    log = temper(lab, "logs", "fail")
    assert "ValueError: row 3 of the input" in log
    attempt = next((Path(lab.store.root) / "attempts" / "fail").iterdir())
    assert temper(lab, "logs", f"fail@{attempt.name[:10]}") == log


# --- running -------------------------------------------------------------------------------------


def test_who_makes_what_is_shown_with_how_far_it_is(lab: Lab) -> None:
    driver = start_held_driver(lab)
    try:
        shown = temper(lab, "status")
        wait_until(lambda: read_runs(lab.store)[-1].seconds >= SIGN_SECONDS)
    finally:
        end(lab, driver, signal.SIGKILL)
    (line,) = shown.splitlines()[1:]
    assert f" {driver.pid} " in line
    assert "/6 count " in line
    assert "gone" not in line
    assert "its process is gone" in temper(lab, "status")
    (killed,) = [run for run in read_runs(lab.store) if run.pid == driver.pid]
    assert f"{killed.name}: killed, last sign of life after" in temper(lab, "runs", killed.name)
    lab.run(count=slow_count(6, lab.journal))
    assert temper(lab, "status") == "nothing is running"


def test_runs_are_listed_and_each_says_what_its_steps_came_to(lab: Lab) -> None:
    with pytest.raises(RunFailed):
        lab.run(broken=fail(lab.numbers(), lab.journal), product=lab.product())
    lab.run(product=lab.product())
    first, second = temper(lab, "runs").splitlines()[1:]
    assert " failed " in first
    assert first.split()[3:6] == ["2", "0", "1"]
    assert second.split()[3:6] == ["0", "2", "0"]
    steps = temper(lab, "runs", first.split()[0])
    assert f"multiply done {newest(lab, 'multiply').key[:8]}" in steps
    assert "row 3 of the input" in steps


def test_a_forgotten_run_is_off_the_record(lab: Lab) -> None:
    lab.run(product=lab.product())
    lab.run(product=lab.product(Times(3)))
    first, second = [line.split()[0] for line in temper(lab, "runs").splitlines()[1:]]
    assert "give more of the name" in refusal(lab, "runs", "--forget", "20")
    assert "name the runs to forget" in refusal(lab, "runs", "--forget")
    temper(lab, "runs", "--forget", first)
    assert [line.split()[0] for line in temper(lab, "runs").splitlines()[1:]] == [second]
    assert "1 " in temper(lab, "gc", "--grace", "0")


def test_the_plan_of_a_script_is_shown_and_its_status_passed_on(
    lab: Lab, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "experiment.py"
    script.write_text("import sys\nprint(sys.argv[1:])\nsys.exit(7)\n")
    planned = call(lab, "plan", str(script), "dpo.beta=0.05", "-m", "--cfg", "job")
    assert planned.exit_code == 7
    assert capfd.readouterr().out == "['--plan', 'dpo.beta=0.05', '-m', '--cfg', 'job']\n"


def test_a_script_that_calls_run_itself_is_planned_and_runs_nothing(
    lab: Lab, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "touching.py"
    script.write_text(
        "from pathlib import Path\n"
        "from pipeline import Output, run, step\n"
        "@step\n"
        "def touch(out: Output, place: str) -> None:\n"
        "    Path(place).touch()\n"
        "if __name__ == '__main__':\n"
        f"    run([touch({str(tmp_path / 'touched')!r})], {str(tmp_path / 'store')!r})\n"
        "    print('it went on')\n"
    )
    before = {path.name for path in tmp_path.iterdir()}
    assert call(lab, "plan", str(script)).exit_code == 0
    shown = capfd.readouterr().out
    assert "1 to run, 0 cached" in shown
    assert "it went on" not in shown
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == before
    command_line.script(script)
    assert (tmp_path / "touched").exists(), "without the command it runs"


# --- explaining ----------------------------------------------------------------------------------


def test_an_artifact_is_explained_by_what_it_was_made_from_and_why(lab: Lab) -> None:
    lab.run(sum=add([lab.product()], lab.journal))
    lab.source.write_text("1 5")
    lab.run(sum=add([lab.product(Times(7))], lab.journal))
    source, product = newest(lab, "numbers"), newest(lab, "multiply")
    old = Catalog(lab.store).history("multiply")[0]
    shown = temper(lab, "explain", "multiply")
    assert "config.factor = 7" in shown
    assert f"values = {source.name}['train']" in shown
    assert f"the nearest made before it is {old.name}; what differs:" in shown
    assert "config.factor: 2 → 7" in shown
    assert f"values: {old.inputs[0].step}@{old.inputs[0].key[:8]}['train']" in shown
    assert "nothing of that has changed" in shown
    assert shown.splitlines()[-2:] == ["used by", newest(lab, "add").name]
    assert "the first of multiply in this store" in temper(lab, "explain", f"multiply@{old.key}")
    assert product.key != old.key


def test_two_steps_are_compared_without_their_code_and_without_python_s_dicts(lab: Lab) -> None:
    """What is one function in the key of a step is another one in the key of another step."""
    base = {"encoding": 3, "arguments": {}}
    commit(
        lab,
        base | {"step": "one"},
        step="one",
        discovered=Discovered({"a:f": "0" * 32}),
        metrics={"last": {"loss": 0.5}},
    )
    commit(
        lab,
        base | {"step": "two"},
        step="two",
        discovered=Discovered({"a:f": "1" * 32}),
        metrics={"last": {"loss": 2}},
    )
    shown = temper(lab, "diff", "one", "two")
    assert "a:f" not in shown
    assert "loss 0.5" in shown
    assert "{" not in shown


# --- letting go and checking ---------------------------------------------------------------------


def test_evicted_data_is_made_again_only_for_who_needs_it(lab: Lab) -> None:
    lab.run(sum=add([lab.product()], lab.journal))
    shown = temper(lab, "evict", "numbers", "multiply", "--yes")
    assert shown.splitlines()[-1] == "freed 18 bytes"
    assert lab.run(sum=add([lab.product()], lab.journal)) == []
    assert temper(lab, "evict", "numbers") == "evicted already: numbers"
    ran = lab.run(sum=add([lab.product(Times(5))], lab.journal))
    assert ran == ["numbers", "multiply", "add"]
    assert not Path(lab.store.content_path(Catalog(lab.store).history("multiply")[0])).exists()


@pytest.mark.usefixtures("product")
def test_nothing_is_evicted_unasked(lab: Lab) -> None:
    assert "add --yes" in refusal(lab, "evict", "multiply")
    assert lab.store.lost_files(newest(lab, "multiply")) == []


@pytest.mark.usefixtures("product")
def test_a_store_that_cannot_be_written_says_so(lab: Lab) -> None:

    def write_nothing() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = subprocess.run(
        [str(TEMPER), "evict", "multiply", "--yes", "--store", lab.store.root],
        capture_output=True, text=True, preexec_fn=write_nothing, timeout=HANGS_SECONDS,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot be written: File too large" in done.stderr
    assert lab.store.lost_files(newest(lab, "multiply")) == []


def test_what_is_being_made_or_read_is_not_evicted(lab: Lab) -> None:
    lab.run(product=lab.product())
    made = newest(lab, "multiply")
    with Leases(lab.store.objects, lab.store.root, "other").held(
        "multiply", made.key, done=lambda: False
    ):
        assert "run other) is making; wait for it" in refusal(lab, "evict", "multiply", "--yes")
        assert "it is an input of multiply@" in refusal(lab, "evict", "numbers", "--yes")
    temper(lab, "evict", "multiply", "numbers", "--yes")


def test_a_flipped_byte_is_found_and_the_next_run_that_needs_it_heals_it(lab: Lab) -> None:
    lab.run(sum=add([lab.product()], lab.journal))
    made = newest(lab, "multiply")
    assert "3 artifacts intact, 0 damaged" in temper(lab, "verify")
    damage(lab, made, "values.json")
    result = call(lab, "verify")
    assert result.exit_code == 1
    assert f"{made.name}: values.json is damaged" in result.output
    assert made.files["values.json"].blake3 in result.output
    assert "2 artifacts intact, 1 damaged" in result.output
    assert lab.run(sum=add([lab.product()], lab.journal)) == [], "nobody needs its bytes"
    assert lab.run(sum=lab.product()) == ["multiply"]
    assert "3 artifacts intact, 0 damaged; 1 passed over" in temper(lab, "verify")


@pytest.mark.parametrize("names", [[], ["multiply"], ["multiply@{key}"]])
@pytest.mark.usefixtures("product")
def test_a_manifest_that_cannot_be_read_is_damage(lab: Lab, names: list[str]) -> None:
    key = newest(lab, "multiply").key
    path = Path(lab.store.manifest_path("multiply", key))
    path.write_text("{")
    result = call(lab, "verify", *(name.format(key=key[:6]) for name in names))
    assert result.exit_code == 1
    assert f"{path} is damaged (Expecting" in result.output
    assert "; delete it, and the step will be run again" in result.output
    assert ", 1 damaged" in result.output
    assert "see: temper verify multiply" in refusal(lab, "show", "multiply")
    listed = "".join(call(lab, "list").output.split())
    assert "numbers@" in listed
    assert f"{path}isdamaged;see:" in listed


@pytest.mark.usefixtures("product")
def test_a_file_that_is_gone_is_damaged_and_an_evicted_artifact_is_not(lab: Lab) -> None:
    lab.store.evict(newest(lab, "numbers"))
    assert "1 artifact intact, 0 damaged; 1 passed over" in temper(lab, "verify")
    (Path(lab.store.content_path(newest(lab, "multiply"))) / "values.json").unlink()
    result = call(lab, "verify", "multiply")
    assert result.exit_code == 1
    assert "found nothing" in result.output


def test_collecting_is_a_dry_run_until_it_is_said(lab: Lab) -> None:
    lab.run(product=lab.product())
    lab.run(product=lab.product(Times(3)))
    before = sorted(Path(lab.store.root).rglob("*"))
    shown = temper(lab, "gc", "--keep-last", "1", "--grace", "0")
    assert "artifacts that no kept run used multiply 1 " in shown
    assert shown.endswith("in all; add --yes to delete")
    assert sorted(Path(lab.store.root).rglob("*")) == before
    assert (
        temper(lab, "gc", "--keep-last", "1", "--grace", "0", "--yes").splitlines()[-1][:5]
        == "freed"
    )
    assert len(Catalog(lab.store).history("multiply")) == 1
    assert lab.run(product=lab.product(Times(3))) == []


# --- what is no part of a store ------------------------------------------------------------------

COMMANDS = (
    ("list",), ("show", "multiply"), ("path", "multiply"), ("logs", "multiply"), ("status",),
    ("runs",), ("explain", "multiply"), ("diff", "multiply", "numbers"), ("verify",), ("gc",),
    ("accept", "numbers", "--yes"), ("evict", "numbers", "--yes"),
)  # fmt: skip


def failures(lab: Lab, *commands: tuple[str, ...]) -> dict[str, str]:
    """What commands refuse to do, and in which words; anything else that goes wrong is raised."""
    refused = {}
    for command in commands:
        error = call(lab, *command).exception
        if error is not None and not isinstance(error, TemperError | OSError):
            raise error
        if error is not None:
            refused[command[0]] = str(error)
    return refused


@pytest.mark.parametrize(
    "damaged",
    [[], {"run": 5}, {"outcome": {}}, {"seconds": "long"}, {"seconds": 1e300}, {"cwd": 5},
     {"steps": [{"step": [1]}]}, {"steps": [{"step": "multiply", "key": [1]}]}, {"argv": 5},
     {"steps": [{"step": "multiply", "seconds": -7}]}, {"steps": "x"}, {"commit": [1]}],
)  # fmt: skip
@pytest.mark.usefixtures("product")
def test_a_damaged_record_of_a_run_is_named_with_what_to_do(lab: Lab, damaged: Any) -> None:
    (path,) = (Path(lab.store.root) / "runs").iterdir()
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, **damaged} if damaged else damaged))
    refused = failures(lab, *COMMANDS)
    assert refused.keys() == {"runs", "gc"}
    assert f"delete it with: temper runs --forget {path.stem}" in refused["runs"]
    path.write_text(json.dumps({**record, "outcome": "running", "pid": 10**30}))
    assert failures(lab, *COMMANDS) == {}


# --- the terminal --------------------------------------------------------------------------------

HOSTILE = "[bold]x[/bold] \x1b[31mred\x9b2J [/nonsense]"


@pytest.mark.parametrize(
    "command",
    [("list",), ("show", "train"), ("explain", "train"), ("diff", "train", "train"), ("runs",)],
)
def test_what_others_wrote_is_text_and_never_an_order_to_the_terminal(
    lab: Lab, command: tuple[str, ...]
) -> None:
    recipe = {"step": "train", "version": HOSTILE, "arguments": {HOSTILE: HOSTILE}}
    kind, metrics = f"m:{HOSTILE}", {HOSTILE: HOSTILE}
    commit(
        lab, recipe, kind=kind, metrics=metrics, provenance={"run": HOSTILE, "host": HOSTILE}
    )  # fmt: skip
    steps = [{"step": HOSTILE, "state": HOSTILE, "why": HOSTILE, "key": HOSTILE}]
    lab.store.record_run({"run": "r", "outcome": HOSTILE, "argv": [HOSTILE], "steps": steps})
    shown = temper(lab, *command) + temper(lab, "runs", "r")
    assert "[bold]x[/bold]" in shown
    assert not {"\x1b", "\x9b"} & set(shown)


def test_an_error_is_one_line_and_status_1(lab: Lab) -> None:
    done = subprocess.run(
        [str(TEMPER), "list", "--store", lab.store.root], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: there is no store at")
    assert done.stderr.count("\n") == 1


# --- remote stores -------------------------------------------------------------------------------


class Requests(list[str]):
    """The requests that are made while it is watched."""

    def __init__(self, patch: pytest.MonkeyPatch):
        for name in ("read", "_listing_of"):
            patch.setattr(Objects, name, self._counted(getattr(Objects, name)))

    def _counted(self, request: Callable[..., Any]) -> Callable[..., Any]:
        def counted(objects: Objects, path: str, **options: bool) -> Any:
            self.append(path)
            return request(objects, path, **options)

        return counted


def test_looking_costs_a_remote_store_requests_by_step_names_and_not_by_artifacts(
    gcs_bucket: str, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path, Store(f"{gcs_bucket}/{tmp_path.name}"), console)
    lab.run(**{str(factor): lab.product(Times(factor)) for factor in range(6)})
    assert "values.json" in temper(lab, "show", "numbers")
    assert f"multiply@{newest(lab, 'multiply').key[:8]}" in temper(lab, "explain", "multiply")
    requests = Requests(monkeypatch)
    for command in ("list", "status", "verify"):
        requests.clear()
        temper(lab, command)
        assert len(requests) <= 9, (command, list(requests))
    temper(lab, "evict", "multiply", "--yes")
    assert "evicted" in temper(lab, "list", "multiply")
    damaged = Catalog(lab.store).history("multiply")[0]
    lab.store.objects.replace(f"{lab.store.content_path(damaged)}/values.json", b"[1, 1]")
    assert call(lab, "verify").exit_code == 1
