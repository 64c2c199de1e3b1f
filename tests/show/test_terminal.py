"""What a person at a terminal sees of a run while it works, when it fails, and how to go on."""

import io
import json
import re
import shlex
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import blake3
import pytest
from command_line import Said, script
from manifests import manifest
from numbers_lab import Lab, start_driver, wait_for
from report_steps import HOSTILE, explode, hostile, prepare
from rich.console import Console
from toy_steps import journal_lines, slow_count
from typer.testing import CliRunner
from waiting import HANGS_SECONDS, wait_until

from pipeline import Store, run
from pipeline.cli import app
from pipeline.dag.canonical import reference_to
from pipeline.dag.files import FileEntry
from pipeline.plan.planning import make_plan
from pipeline.plan.resolver import Resolver
from pipeline.running.session import RunFailed
from pipeline.show.live import NORMAL, Board
from pipeline.show.terminal import show_next
from pipeline.store.catalog import Catalog
from pipeline.store.logs import GrowingLog, follow
from pipeline.store.runs import names_of_runs
from steps.kinds import Model

pytestmark = pytest.mark.usefixtures("workers_here")

SCRIPT = """
from dataclasses import dataclass, field
from pathlib import Path
from pipeline import Output, Step, step
from pipeline.experiment import ExperimentConfig, main

@dataclass
class Config(ExperimentConfig):
    betas: list[float] = field(default_factory=lambda: [0.1, 0.5])
    broken: float = 0.5

@step
def sure(out: Output) -> dict:
    print("sure of it")
    return {"x": 1}

@step
def learn(out: Output, data: object, beta: float, broken: float) -> dict:
    print(f"learning with {beta}")
    if beta == broken:
        raise ValueError("it diverged; lower the rate")
    return {"x": beta}

def toy(cfg: Config) -> dict[str, Step]:
    data = sure()
    return {f"beta {b}": learn(data, b, cfg.broken) for b in cfg.betas}

if __name__ == "__main__":
    main(toy)
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "toy.yaml").write_text("defaults:\n  - schema\n  - _self_\n")
    (tmp_path / "toy.py").write_text(SCRIPT)
    return tmp_path


def call(desk: Path, *arguments: str) -> Said:
    return script("toy.py", f"store={desk}/store", *arguments)


@pytest.mark.real_workers
def test_a_failure_ends_with_the_log_and_the_command_that_runs_that_step_alone(desk: Path) -> None:
    failed = call(desk)
    assert failed.status == 3
    end = failed.out[failed.out.index("✗") :]
    assert "learn (beta 0.5): it diverged; lower the rate" in end
    assert "Traceback" not in end
    log = next(line for line in end.splitlines() if "whole log: " in line).split(": ", 1)[1]
    assert "learning with 0.5" in Path(log).read_text()
    assert "ValueError: it diverged" in Path(log).read_text()
    again = next(line for line in end.splitlines() if "only this step, again: " in line)
    command = shlex.split(again.split(": ", 1)[1])
    alone = subprocess.run(command, cwd=desk, capture_output=True, text=True)
    assert alone.returncode == 3
    assert "1 to run, 1 cached" in alone.stdout
    assert "learn (" not in alone.stdout  # there is no other


def test_only_makes_the_steps_that_are_named_and_what_they_need(desk: Path) -> None:
    first = call(desk, "only=[sure]")
    assert first.status == 0
    assert "1 to run" in first.out
    assert "learn" not in first.out
    some = call(desk, "only=[learn]", "broken=9", "--plan").out
    assert "learn (beta 0.1)" in some
    assert "learn (beta 0.5)" in some
    unknown = call(desk, "only=[teach]")
    assert "only: there is no step teach in this experiment; it has: sure, learn" in unknown.err


@pytest.mark.real_workers
def test_verbose_shows_what_workers_print_and_lines_say_where_they_run(desk: Path) -> None:
    done = call(desk, "betas=[0.1]", "broken=9", "--verbose", "+launcher.steps.learn.cpus=1")
    assert "sure: done in" in done.out
    assert "sure | sure of it" in done.out
    assert re.search(r"learn: (running|done in .*) \(local, cpus=1\)", done.out)
    assert "learn | learning with 0.1" in done.out
    assert done.out.count("sure of it") == 1


def many(
    store: Store, tmp_path: Path, count: int, height: int = 50, verbosity: int = NORMAL
) -> Board:
    """The board of a run of many steps, in a terminal of so many lines."""
    store.prepare()
    journal = str(tmp_path / "journal")
    plan = make_plan({f"until={i}": slow_count(i, journal) for i in range(count)}, store)
    console = Console(
        file=io.StringIO(), force_terminal=True, width=120, height=height, color_system=None
    )
    return Board(console, plan, Resolver(Catalog(store)), verbosity)


def test_a_log_is_followed_line_by_line_until_its_end(store: Store, tmp_path: Path) -> None:
    store.prepare()
    path = Path(store.root) / "log.txt"
    over = threading.Event()
    seen: list[str] = []
    lines = follow(GrowingLog(store, str(path)), over.is_set)
    reader = threading.Thread(target=lambda: seen.extend(lines))
    reader.start()
    with open(path, "ab", buffering=0) as file:
        file.write(b"one\ntw")
        wait_until(lambda: seen, "the first line is read")
        file.write("o\nthrée".encode())
    over.set()
    reader.join(HANGS_SECONDS)
    assert seen == ["one", "two", "thrée"]


def test_the_log_of_a_step_is_followed_from_the_shell_until_it_ends(
    store: Store, tmp_path: Path, console: Console
) -> None:
    lab = Lab(tmp_path, store, console)
    driver = start_driver(lab)
    wait_for(lab, "count 2")
    result = CliRunner().invoke(app, ["logs", "slow_count", "-f", "--store", store.url])
    assert result.exit_code == 0
    assert "count 6" in journal_lines(lab.journal)
    assert driver.wait() == 0


def test_what_anybody_wrote_is_text_in_the_terminal(store: Store) -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    half = "\ud83d half"
    with pytest.raises(RunFailed):
        run(
            {
                HOSTILE["html"]: hostile(prepare(), {half: half, **HOSTILE}, note=half),
                f"{HOSTILE['ansi']}{half}": explode(prepare(), "".join(HOSTILE.values()) + half),
            },
            store,
            console=console,
        )
    again = {HOSTILE["html"]: hostile(prepare(), {half: half, **HOSTILE}, note=half)}
    run(again, store, console=console)  # cached, so that results are shown
    shown = printed(console)
    names = names_of_runs(store)
    for arguments in (["runs", names[0]], ["show", "hostile"], ["list"], ["diff", *names],
                      ["explain", "hostile"], ["logs", "explode"]):  # fmt: skip
        result = CliRunner().invoke(app, [*arguments, "--store", store.url])
        assert result.exit_code == 0, (arguments, result.exception)
        shown += result.output
    for raw in ("\x1b[31m", "\x1b]", "\x07", "\u202e", "\u2066"):
        assert raw not in shown, ascii(raw)
    assert HOSTILE["html"] in shown
    assert "<script>document.title='owned'</script>" in shown
    assert "[l](javascript:x)" in shown
    assert len(shown) < 400_000


def printed(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("config", "is_answered"),
    [({"architectures": ["LlamaForCausalLM"]}, True), ({"vision_config": {}}, False),
     ({"architectures": ["LlamaForSequenceClassification"]}, False), (None, False)],
    ids=["reads texts", "reads images", "gives scores", "adapters alone"],
)  # fmt: skip
def test_the_end_of_a_run_names_chat_only_for_a_model_that_chat_takes(
    config: dict[str, Any] | None, is_answered: bool, store: Store, console: Console
) -> None:
    file = "adapter_config.json" if config is None else "config.json"
    content = json.dumps(config).encode()
    files = {file: FileEntry(len(content), blake3.blake3(content).hexdigest())}
    made = replace(manifest("a"), kind=reference_to(Model), files=files)
    store.objects.create(f"{store.content_path(made)}/{file}", content)
    show_next(console, store, "mine", {"chosen": Model}, {"chosen": made})
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("temper chat mine/chosen" in printed) == is_answered
    assert "temper report" in printed
