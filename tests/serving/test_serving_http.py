"""``temper serve``: whose server it starts, where it listens, and that it ends with its command."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
from places import REPOSITORY

from pipeline import TemperError
from steps.serving.named_models import NamedModel
from steps.serving.serve import LOOPBACK, Server, example, model_id, serve, server_command

_PROGRAM = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
import typer
from steps.serving.serve import serve
typer.run(serve)
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return found.getsockname()[1]


def test_a_server_is_told_of_one_model_and_listens_on_this_machine_alone() -> None:
    for server in Server:
        command = server_command(server, "experiment/export", LOOPBACK, 8000)
        assert command[3:] == (
            "serve", "experiment/export", "--host", "127.0.0.1", "--port", "8000",
        )  # fmt: skip


def test_a_model_is_called_by_its_name_without_what_servers_take_for_something_else() -> None:
    folder = Path("/models/a@b:c")
    assert model_id(NamedModel("e/after DPO", folder, True)) == "e/after-DPO"
    assert model_id(NamedModel("train_sft@12ab", folder, True)) == "train_sft-12ab"
    assert model_id(NamedModel("/models/a@b:c", folder)) == "a-b-c"
    assert model_id(NamedModel("e/..", folder, True)) == "model"


def test_the_example_is_one_command_of_a_shell() -> None:
    command = example("http://127.0.0.1:8000/v1", "experiment/export")
    words = subprocess.run(
        ["bash", "-c", f"curl() {{ printf '%s\\n' \"$@\"; }}; {command}"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert words[0] == "http://127.0.0.1:8000/v1/chat/completions"
    assert json.loads(words[-1])["model"] == "experiment/export"


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_a_server_that_is_not_installed_is_named_with_its_remedy() -> None:
    with pytest.raises(TemperError, match="the server of vllm needs vllm: pip install vllm"):
        serve("model", through=Server.vllm)


def test_a_port_that_is_taken_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("steps.serving.serve._missing", lambda server: [])
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(TemperError, match=rf"cannot listen on 127.0.0.1:{port} .*--port"):
            serve("model", port=port, through=Server.transformers)


@pytest.mark.slow
@pytest.mark.skipif(
    any(find_spec(module) is None for module in ("uvicorn", "fastapi", "openai")),
    reason="needs transformers[serving]",
)
def test_a_client_is_answered_and_the_server_ends_with_the_command(chat_model: Path) -> None:
    port = free_port()
    command = [sys.executable, "-c", _PROGRAM, str(chat_model), "--port", str(port)]
    command += ["--through", "transformers"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith(f"{chat_model} at http://127.0.0.1:{port}/v1, through transformers")
        curl = process.stdout.readline()
        found = re.search(r"-d '(.*)'", curl)
        assert found is not None
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            found[1].encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            answer = json.load(response)
        assert answer["choices"][0]["message"]["role"] == "assistant"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 128 + signal.SIGTERM
        with socket.socket() as trial:
            assert trial.connect_ex((LOOPBACK, port)) != 0
    finally:
        process.terminate()  # it ends its server, which a kill would leave behind
        process.wait()
