"""``temper mcp``: the answers of ``--json`` as tools of an MCP server on standard input and output.

A tool calls the command that it is named after, in a process of its own, and answers with the
object that ``--json`` prints. So a tool's schema is the command's: every command that takes
``--json`` is a tool, and its arguments and options with values are the tool's. Its flags are not:
they change a store or follow a log. ``plan`` and ``run`` are those of ``temper run``.
"""

import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import IO, Annotated, Any, get_args

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field
from typer.models import ArgumentInfo, CommandInfo, OptionInfo

import pipeline

_ABOUT = """Temper makes post-training runs of cached steps. First plan: it tells which steps would
run, why, and how long they take. Every tool answers with what `temper COMMAND --json` prints."""
_MOST_ERROR = 4000
"""The most letters of an error that are passed on, its last."""
_UNNAMED = ("store", "as_json")
Recipe = Annotated[str, Field(description="A name that temper recipes lists, or a .yaml file.")]
Data = Annotated[str | None, Field(description="A file or folder of rows, or a name of the Hub.")]
Model = Annotated[str | None, Field(description="A folder, a result as EXPERIMENT/RESULT, a name.")]
_SETTINGS = (
    "NAME=VALUE each, as dpo.loss.beta=0.1 or budget=2h; -m among them makes NAME=1,2 a sweep."
)
Settings = Annotated[Sequence[str], Field(description=_SETTINGS)]
Wait = Annotated[float, Field(description="The most seconds to wait before it answers.")]


@dataclass
class _Call:
    """A run of ``temper`` in another process, with its output in files."""

    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]

    def answer(self) -> dict[str, Any]:
        """What the command printed.

        Raises:
            ToolError: it failed; the error says what it said.
        """
        status = self.process.wait()
        out, err = (_read(file) for file in (self.out, self.err))
        if status:
            raise ToolError(f"{err[-_MOST_ERROR:].strip()} (exit status {status})")
        return json.loads(out)


@dataclass
class _Commands:
    """Calls ``temper`` as this process was called, with a store.

    Attributes:
        runs: those that were started and whose end nobody has seen yet, by their words.
    """

    store: str
    runs: dict[tuple[str, ...], _Call] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def start(self, words: Sequence[str]) -> _Call:
        mine = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - outlive this
        environment = {**os.environ, "TEMPER_STORE": self.store}
        command = [sys.executable, *mine, *words]
        nothing = subprocess.DEVNULL  # this process's own input is the protocol's
        started = subprocess.Popen(command, stdin=nothing, stdout=out, stderr=err, env=environment)
        return _Call(started, out, err)

    def call(self, *words: str) -> dict[str, Any]:
        return self.start(words).answer()

    def plan(
        self, recipe: Recipe, data: Data = None, model: Model = None, settings: Settings = ()
    ) -> dict[str, Any]:
        """Show which steps a recipe would run with these settings, why, and their cost. It runs
        nothing."""
        return self.call(*_words(recipe, data, model, settings), "--plan")

    def run(
        self,
        recipe: Recipe,
        data: Data = None,
        model: Model = None,
        settings: Settings = (),
        wait: Wait = 45.0,
    ) -> dict[str, Any]:
        """Run a recipe and answer with its results. If that takes longer than `wait`, the answer is
        the status, and the run goes on: the same call waits for it again. It ends in order with
        this server, and goes on from there if it is called once more."""
        words = tuple(_words(recipe, data, model, settings))
        with self.lock:
            call = self.runs[words] = self.runs.get(words) or self.start(words)
        try:
            call.process.wait(wait)
        except subprocess.TimeoutExpired:
            return self.call("status", "--json")
        with self.lock:
            self.runs.pop(words, None)
        return call.answer()

    def end(self) -> None:
        """Stop the runs as Ctrl-C does."""
        for call in self.runs.values():
            call.process.terminate()
        for call in self.runs.values():
            call.process.wait()


def serve(commands: Sequence[CommandInfo], store: str, allow_run: bool) -> None:
    """Serve until standard input ends.

    Args:
        commands: those of ``temper``; each that takes ``--json`` becomes a tool.
        allow_run: whether there is a tool that runs recipes; all others change nothing.
    """
    ours = _Commands(store)
    version = pipeline.__version__
    server = MCPServer("temper", instructions=_ABOUT, version=version, log_level="WARNING")
    reading = ToolAnnotations(read_only_hint=True)
    server.add_tool(ours.plan, annotations=reading)
    for command in commands:
        if command.callback and "as_json" in inspect.signature(command.callback).parameters:
            tool = _tool(command.name or command.callback.__name__, command.callback, ours)
            server.add_tool(tool, annotations=reading)
    if allow_run:
        server.add_tool(ours.run, annotations=ToolAnnotations(destructive_hint=False))
    try:
        server.run()
    finally:
        ours.end()


def _tool(name: str, command: Callable[..., Any], ours: _Commands) -> Callable[..., Any]:
    """A function with the arguments of a command, that calls it with ``--json``."""
    infos: dict[str, ArgumentInfo | OptionInfo] = {}
    taken: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind, info = get_args(parameter.annotation)[:2]
        if kind is not bool and parameter.name not in _UNNAMED:
            infos[parameter.name] = info
            about = Annotated[kind, Field(description=info.help or info.metavar)]
            taken.append(parameter.replace(annotation=about))

    def tool(**given: Any) -> dict[str, Any]:
        options, arguments = list[str](), list[str]()
        for one, value in given.items():
            values = value if isinstance(value, list) else [value] if value is not None else []
            if isinstance(infos[one], OptionInfo):
                options += [f"--{one.replace('_', '-')}={each}" for each in values]
            else:
                arguments += map(str, values)
        return ours.call(name, "--json", *options, "--", *arguments)

    tool.__name__, tool.__doc__ = name, command.__doc__
    answer: Mapping[str, Any] = {"return_annotation": dict[str, Any]}
    vars(tool)["__signature__"] = inspect.Signature(taken, **answer)
    return tool


def _words(recipe: str, data: str | None, model: str | None, settings: Sequence[str]) -> list[str]:
    """
    Raises:
        ToolError: an option stands where a recipe or a setting belongs.
    """
    for word in settings:
        if word != "-m" and (word.startswith("-") or "=" not in word):
            raise ToolError(f"{word}: settings are written NAME=VALUE")
    if recipe.startswith("-"):
        raise ToolError(f"{recipe} is no recipe")
    given = [f"--{n}={value}" for n, value in (("data", data), ("model", model)) if value]
    return ["run", recipe, *given, *settings, "--json"]


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    with file:
        return file.read().decode(errors="replace")
