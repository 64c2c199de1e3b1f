"""Metrics in other places: the same numbers under the same steps, also after a kill."""

import json
import math
import os
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from drivers import Driver
from places import REPOSITORY, SUPPORT_PATH
from report_steps import HOSTILE, JOURNAL, hostile, prepare, train
from rich.console import Console
from waiting import hold, let_go, wait_until

from pipeline import Store, TemperError, run
from pipeline.show.artifact_handle import Made
from pipeline.show.sinks import Watched, mirror, process, weights_and_biases
from pipeline.store.catalog import Catalog

pytestmark = pytest.mark.usefixtures("forked_workers")

SCRIPT = """
import sys
from report_steps import train
from pipeline import run
run({"trained": train(40)}, sys.argv[1], sinks=sys.argv[2:])
"""


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, no network, no configuration of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def start(store: Store, *sinks: str) -> Driver:
    environment = {**os.environ, "PYTHONPATH": f"{SUPPORT_PATH}{os.pathsep}{REPOSITORY}"}
    environment[JOURNAL] = store.root
    script = Path(store.root).parent / "experiment.py"
    script.write_text(SCRIPT)
    return Driver([str(script), store.url, *sinks], Path.cwd(), environment)


def log_of(store: Store) -> list[dict[str, Any]]:
    (made,) = Catalog(store).history("train")
    return Made(made, store).records("metrics.jsonl")


def wandb_run(
    store: Store, step: str = "train"
) -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    """The one run of a step that is kept offline: its header, history and summary."""
    pb: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    (file,) = (Path(store.root) / "sinks/wandb").glob(f"offline-run-*-{step}-*/*.wandb")
    header, history, summary = None, [], {}
    for data in wandb_records(file.read_bytes()):
        record = pb.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            header = record.run
        if record.HasField("history"):
            row = {i.key or "/".join(i.nested_key): json.loads(i.value_json)
                   for i in record.history.item}  # fmt: skip
            history.append({"_step": record.history.step.num, **row})
        if record.HasField("summary"):
            for item in record.summary.update:
                summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return header, history, summary


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of a ``.wandb`` file: LevelDB's log format after a header of 7 bytes. A record
    lies in one or more pieces (full 1, first 2, middle 3, last 4), none across 32 KiB."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        piece = data[at + 7 : at + 7 + length]
        whole = piece if kind in (1, 2) else whole + piece
        at += 7 + length
        if kind in (1, 4):
            yield whole


def numbers(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"step": row["_step"], **{n: v for n, v in row.items() if not n.startswith("_")}}
        for row in history
    ]


def killed_and_run_again(store: Store, sink: str, begun: str) -> str:
    """What a run prints that goes on with one which was killed with something in its sink."""
    pytest.importorskip(sink)
    log = Path(store.root) / "scratch"
    hold(Path(store.root), 13)
    first = start(store, sink)
    wait_until(lambda: [p for p in log.rglob("metrics.jsonl") if p.read_bytes().count(b"\n") > 11])
    wait_until(lambda: list((Path(store.root) / "sinks" / sink).glob(begun)))
    first.kill()
    first.wait()
    let_go(Path(store.root))
    wait_until(lambda: not list_mirrors(store))
    again = start(store, sink)
    output = again.communicate()
    assert again.returncode == 0, output
    return output


@pytest.mark.attack
def test_an_offline_wandb_run_is_the_metrics_file_also_after_a_kill(store: Store) -> None:
    output = killed_and_run_again(store, "wandb", "offline-run-*")
    header, history, summary = wandb_run(store)
    assert numbers(history) == log_of(store)
    assert [row["_step"] for row in history] == list(range(1, 41))
    (made,) = Catalog(store).history("train")
    assert (header.run_group, header.job_type) == ("experiment", "train")
    assert header.run_id == f"train-{made.key[:16]}"
    config = {item.key: json.loads(item.value_json) for item in header.config.update}
    assert config["temper/key"] == made.key
    assert config["temper/store"] == store.url
    assert config["steps"] == 40
    assert config["api_key"] == "…"
    assert summary["final"] == made.metrics["final"]
    assert summary["accuracy.low"] == 0.25
    assert "wandb sync" in output


@pytest.mark.slow
def test_a_key_without_a_network_leaves_everything_on_this_machine(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody answers there
    monkeypatch.setattr(weights_and_biases, "INIT_SECONDS", 3.0)
    sink = weights_and_biases.WandbSink()
    assert sink.mode == "online"
    for key in ("a" * 32, "b" * 32):
        watched = Watched("experiment", "train", "train", key, {}, Path(store.root) / "sinks")
        view = sink.open(watched)
        assert view is not None
        view.log(1, {"loss": 0.5})
        view.end({"final": 0.5})
    assert sink.notice().startswith("not online (")
    assert "wandb sync" in sink.notice()
    kept = list((Path(store.root) / "sinks/wandb").glob("offline-run-*-train-*/*.wandb"))
    assert len(kept) == 2
    wait_until(lambda: all(b"final" in file.read_bytes() for file in kept))


def test_a_server_that_refuses_a_key_leaves_everything_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[dict[str, Any]] = []

    def init(**asked: Any) -> SimpleNamespace:
        begun.append(asked)
        if asked["mode"] == "online":
            raise RuntimeError("the key\nis invalid")
        return SimpleNamespace(starting_step=0)

    released: list[bool] = []
    wandb: Any = ModuleType("wandb")
    wandb.init, wandb.Settings, wandb.teardown = init, dict, lambda: released.append(True)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    assert weights_and_biases.WandbSink().mode == "offline"  # without a key
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    sink = weights_and_biases.WandbSink()
    assert sink.mode == "online"
    watched = Watched("experiment", "train", "train", "a" * 32, {}, tmp_path / "sinks")
    left = tmp_path / "sinks/wandb" / f"offline-run-1-train-{'a' * 16}"
    left.mkdir(parents=True)
    sink.open(watched)
    assert [(asked["mode"], asked["resume"]) for asked in begun] == [
        ("online", "allow"), ("offline", None)
    ]  # fmt: skip
    assert released  # else the id of the run stays reserved
    assert not left.exists()  # an earlier attempt's
    assert sink.notice().startswith("not online (the key is invalid); kept in")

    def full(**_: Any) -> None:
        raise OSError("no space left")

    wandb.init = full
    with pytest.raises(OSError, match="no space left"):  # offline, nothing else can be tried
        sink.open(watched)


@dataclass
class _Recorded:
    """A sink of one step, which keeps what it is told."""

    logged: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)
    ends: list[Mapping[str, Any] | None] = field(default_factory=list)

    def open(self, watched: Watched) -> "_Recorded":
        return self

    def notice(self) -> str:
        return "in the test"

    def log(self, at: int, values: Mapping[str, float]) -> None:
        self.logged.append((at, values))

    def end(self, summary: Mapping[str, Any] | None) -> None:
        self.ends.append(summary)


def begun(store: Store, folder: Path, text: str) -> tuple[Path, _Recorded, mirror.Mirror]:
    """The log of a step that runs, with this text, and a mirror that sends it to a sink."""
    store.prepare()
    log = store.scratch_root() / "train" / "k1" / "checkpoint" / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text(text)
    sink = _Recorded()
    sending = mirror.Mirror(store, "mine", "experiment", {"one": sink}, folder)
    sending.begin("train", "train", "k1", {})
    return log, sink, sending


@pytest.mark.parametrize("is_told", [True, False], ids=["failed", "driver killed"])
def test_the_last_values_of_a_step_without_an_artifact_reach_sinks(
    is_told: bool, store: Store, tmp_path: Path
) -> None:
    text = '{"step": 1, "loss": 9.0}\n{"step": 2, "loss": NaN}\n'
    _, sink, sending = begun(store, tmp_path, text)
    if is_told:
        sending.end("train", "k1")
    sending.end_all()
    assert [at for at, _ in sink.logged] == [1, 2]
    assert math.isnan(sink.logged[1][1]["loss"])
    assert sink.ends == [None]


def list_mirrors(store: Store) -> list[Path]:
    """Processes that hand on what is in a store."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"pipeline.show.sinks.mirror" in words and store.url.encode() in words:
            found.append(path)
    return found


def test_hostile_names_reach_every_sink_as_text(store: Store, console: Console) -> None:
    for package in ("wandb", "tensorboard"):
        pytest.importorskip(package)
    half = "\ud83d half"
    root = hostile(prepare(), {half: half, **HOSTILE}, note=half, api_key="not-for-sinks")
    kinds = ["wandb", "tensorboard"]
    made = run({HOSTILE["html"]: root}, store, console=console, sinks=kinds)
    header, history, summary = wandb_run(store, "hostile")
    assert [row["_step"] for row in history] == [0, 1, 2]
    assert {HOSTILE["html"], HOSTILE["ansi"]} <= history[0].keys()
    assert summary[HOSTILE["script"]] == made[HOSTILE["html"]].metrics[HOSTILE["script"]]
    (hostile_one,) = Catalog(store).history("hostile")
    assert header.job_type == "hostile"
    assert header.run_id == f"hostile-{hostile_one.key[:16]}"
    config = {item.key: json.loads(item.value_json) for item in header.config.update}
    assert config["temper/key"] == hostile_one.key
    assert config["temper/store"] == store.url
    assert config["note"] == "? half"
    assert config["api_key"] == "…"
    kept = [path for path in (Path(store.root) / "sinks").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if b"not-for-sinks" in path.read_bytes()]
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Error" not in shown
    assert "wandb sync" in shown


@pytest.mark.slow
def test_tensorboard_shows_the_metrics_file_also_after_a_kill(store: Store) -> None:
    output = killed_and_run_again(store, "tensorboard", "*/train-*/*")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (Path(store.root) / "sinks/tensorboard").glob("*/train-*")
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    for name in ("loss", "rewards/margins"):
        shown = [(e.step, float(e.tensor_proto.float_val[0])) for e in events.Tensors(name)]
        expected = [(r["step"], pytest.approx(r[name])) for r in log_of(store)]
        assert shown == expected
    (final,) = events.Tensors("final/accuracy.low")
    assert final.tensor_proto.float_val[0] == 0.25
    assert "tensorboard --logdir" in output


def test_a_sink_that_cannot_write_says_so_and_stops_nothing(store: Store, console: Console) -> None:
    pytest.importorskip("tensorboard")
    store.prepare()
    (Path(store.root) / "sinks").write_text("in the way")
    made = run({"trained": train(3)}, store, console=console, sinks=["tensorboard"])
    assert made["trained"].metrics["final"] == pytest.approx(1 / 3)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "tensorboard: " in shown
    assert "Error" in shown
    assert "tensorboard: nothing was sent or kept" in shown
    assert "--logdir" not in shown


_HANGS = """
import threading
Settings = dict
def init(**_):
    threading.Event().wait()
"""


def test_a_run_does_not_wait_for_a_sink_that_hangs(
    store: Store, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hung").mkdir()
    (tmp_path / "hung" / "wandb.py").write_text(_HANGS)
    monkeypatch.syspath_prepend(str(tmp_path / "hung"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'hung'}{os.pathsep}{REPOSITORY}")
    monkeypatch.setattr(process, "END_SECONDS", 0.0)
    more_than_a_pipe_takes = "long " * 100_000
    root = hostile(prepare(), {}, note=more_than_a_pipe_takes)
    assert run({"made": root}, store, console=console, sinks=["wandb"])["made"].seconds >= 0
    assert "still busy" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("sinks", "message"),
    [(["mlflow"], "no sink 'mlflow'; known: wandb, tensorboard"), ("wandb", "sinks='wandb'")],
)
def test_what_is_no_sink_is_refused_before_anything_runs(
    store: Store, sinks: Any, message: str
) -> None:
    with pytest.raises(TemperError, match=message):
        run({"data": prepare()}, store, sinks=sinks)
    assert not Path(store.root).exists()
