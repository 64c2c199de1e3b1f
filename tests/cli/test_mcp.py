"""``temper mcp``: the SDK's own client gets from each tool what the command prints with --json."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from numbers_lab import Lab
from rich.console import Console
from toy_steps import Times
from typer.testing import CliRunner

from pipeline import Store
from pipeline.cli import app
from pipeline.store.runs import names_of_runs

pytest.importorskip("mcp")
from mcp import Client, StdioServerParameters

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("workers_here")]
READING = {"plan", "list", "logs", "status", "runs", "results", "explain", "diff"}


def asked(store: Store, options: list[str], calls: list[tuple[str, dict[str, Any]]]) -> Any:
    """The names of the tools that a server has, and its answer to each call."""

    async def talk() -> Any:
        words = ["-m", "pipeline", "mcp", "--store", store.url, *options]
        path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        server = StdioServerParameters(command=sys.executable, args=words, env=os.environ | path)
        async with Client(server) as client:
            tools = (await client.list_tools()).tools
            return {tool.name for tool in tools}, [await client.call_tool(*c) for c in calls]

    return anyio.run(talk)


def test_a_tool_answers_with_what_its_command_prints(
    tmp_path: Path, store: Store, console: Console
) -> None:
    lab = Lab(tmp_path, store, console)
    lab.run(product=lab.product())
    lab.run(product=lab.product(Times(5)))
    first, last = names_of_runs(store)
    calls = [
        ("list", {"step": "multiply"}, ["list", "multiply"]),
        ("logs", {"artifact": "multiply", "last": 3}, ["logs", "multiply", "--last", "3"]),
        ("status", {}, ["status"]),
        ("runs", {"names": [first, last]}, ["runs", first, last]),
        ("results", {}, ["results"]),
        ("explain", {"artifact": "multiply"}, ["explain", "multiply"]),
        ("diff", {"old": first, "new": last}, ["diff", first, last]),
    ]
    wrong = [
        ("plan", {"recipe": "dpoo"}),
        ("plan", {"recipe": "dpo", "settings": ["--help"]}),
        ("runs", {"names": ["--forget", first]}),
    ]
    tools, answers = asked(store, [], [*(call[:2] for call in calls), *wrong])
    assert tools == READING
    for (name, _, words), answer in zip(calls, answers, strict=False):
        assert not answer.is_error, (name, answer.content)
        printed = CliRunner().invoke(app, [*words, "--json", "--store", store.url])
        assert answer.structured_content == json.loads(printed.stdout), name
    refused = [answer.content[0].text for answer in answers[len(calls) :]]
    assert all(answer.is_error for answer in answers[len(calls) :])
    assert "there is no recipe dpoo; did you mean dpo?" in refused[0]
    assert "settings are written NAME=VALUE" in refused[1]
    assert len(names_of_runs(store)) == 2, refused[2]


def test_a_run_goes_on_after_an_answer_and_the_same_call_waits_for_it(
    tmp_path: Path, store: Store, console: Console
) -> None:
    lab = Lab(tmp_path, store, console)
    lab.run(product=lab.product())
    call = {"recipe": "dpo", "settings": ["sft=nothing"]}
    tools, (early, late) = asked(
        store, ["--allow-run"], [("run", call | {"wait": 0}), ("run", call)]
    )
    assert tools == READING | {"run"}
    assert early.structured_content["schema"] == "temper.status/1"
    assert late.is_error
    assert "sft" in late.content[0].text
