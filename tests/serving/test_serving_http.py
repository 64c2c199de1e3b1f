"""``temper serve``: whose server it starts, where it listens, and that it ends with its command."""

import json
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from places import REPOSITORY

from pipeline import TemperError
from steps.data.rows.rows import Message
from steps.serving.named_models import NamedModel
from steps.serving.openai_app import LARGEST_BODY
from steps.serving.replies import Drawing, Speaker
from steps.serving.serve import LOOPBACK, Server, model_id, serve, vllm_command

QUESTION: list[Message] = [{"role": "user", "content": "What is 1 + 2?"}]

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


def test_vllm_is_told_of_one_model_and_listens_on_this_machine_alone() -> None:
    command = vllm_command("experiment/export", LOOPBACK, 8000)
    assert command[3:] == ("serve", "experiment/export", "--host", "127.0.0.1", "--port", "8000")


def test_a_model_is_called_by_its_name_without_what_servers_take_for_something_else() -> None:
    folder = Path("/models/a@b:c")
    assert model_id(NamedModel("e/after DPO", folder, True)) == "e/after-DPO"
    assert model_id(NamedModel("train_sft@12ab", folder, True)) == "train_sft-12ab"
    assert model_id(NamedModel("/models/a@b:c", folder)) == "a-b-c"
    assert model_id(NamedModel("e/..", folder, True)) == "model"


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


@pytest.fixture(scope="module")
def served(chat_model: Path) -> Iterator[OpenAI]:
    """The official client of a server, which answers its example, and ends with its command."""
    port = free_port()
    command = [sys.executable, "-c", _PROGRAM, str(chat_model), "--port", str(port)]
    command += ["--through", "transformers"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith(f"{chat_model} at http://127.0.0.1:{port}/v1, through transformers")
        _, url, _, kind, _, body = shlex.split(process.stdout.readline())
        headers = dict([kind.split(": ")])
        with urlopen(UrlRequest(url, body.encode(), headers)) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"]
        with OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0
        ) as client:
            yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 128 + signal.SIGTERM
    finally:
        process.terminate()
        process.wait()


def ask(client: OpenAI, **fields: Any) -> Any:
    asked = {"model": "model", "messages": QUESTION, "max_tokens": 24, "temperature": 0, **fields}
    return client.chat.completions.create(**asked)


@pytest.mark.slow
def test_openai_s_client_is_answered_as_temper_chat_answers(
    served: OpenAI, chat_model: Path
) -> None:
    (model,) = served.models.list()
    assert model.id == "model"
    choice = ask(served).choices[0]
    expected = Speaker(chat_model).answer(QUESTION, Drawing(24), lambda piece: None)
    assert (choice.message.content, choice.finish_reason) == (expected, "length")
    events = list(ask(served, stream=True, stream_options={"include_usage": True}))
    assert "".join(e.choices[0].delta.content for e in events[:-1]) == expected
    assert events[-1].usage.completion_tokens == 24
    stopped = ask(served, stop=[expected[3:6], "none"]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == (
        expected[: expected.index(expected[3:6])], "stop",
    )  # fmt: skip
    drawn = [ask(served, n=3, seed=1, temperature=2).choices for _ in range(2)]
    texts = [[choice.message.content for choice in choices] for choices in drawn]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1
    same = served.completions.create(model="model", prompt=["1 +"] * 2, seed=1, temperature=2)
    assert len({choice.text for choice in same.choices}) == 2
    assert ask(served, temperature=1e-40).choices[0].message.content == expected
    with served.chat.completions.stream(model="model", messages=QUESTION, n=2) as stream:  # type: ignore[arg-type]
        stream.until_done()
    for whole in stream.get_final_completion().choices:
        assert whole.message.role == "assistant"
        fields = whole.message.model_dump(exclude={"parsed"})
        assert ask(served, messages=[*QUESTION, fields, *QUESTION], max_tokens=1).choices


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model": "gpt-4"}, "this server has 'model'"),
    "no messages": ({"messages": []}, "messages"),
    "no content": ({"messages": [{"role": "user"}]}, "needs content"),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'text'"),
    "a temperature below 0": ({"temperature": -1}, "temperature"),
    "a text for a number": ({"max_tokens": "5"}, "max_tokens"),
    "an empty stop text": ({"stop": ""}, "stop"),
    "what it does not support": ({"logprobs": True}, "logprobs: this server does not support it"),
    "what nobody knows": ({"extra_body": {"a field": 1}, "stop": [""]}, "field: this server"),
    "what nobody knows in a message": (
        {"messages": [{**QUESTION[0], "thoughts": ""}]}, "messages.0.thoughts",
    ),
    "a call as it was before": (
        {"messages": [{**QUESTION[0], "function_call": {}, "audio": {"id": "1"}}]}, "0.audio: this",
    ),
    "too long a prompt": (
        {"messages": [{"role": "user", "content": "1 " * 99}], "stream": True}, "model takes 96",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_request_is_refused_as_openai_would(odd: str, served: OpenAI) -> None:
    fields, told = ODD[odd]
    with pytest.raises(BadRequestError if odd != "another model" else NotFoundError, match=told):
        ask(served, **fields)


@pytest.mark.slow
def test_a_broken_request_gets_an_error_object_and_a_cut_one_harms_nobody(served: OpenAI) -> None:
    host, port = served.base_url.host, served.base_url.port
    zero = b'{"model": "model", "prompt": "1 +", "logprobs": 0}'
    for method, path, body, headers, status in (
        ("POST", "/v1/chat/completions", b"{", {}, 400),
        ("POST", "/v1/completions", zero, {}, 400),
        ("GET", "/v1/chat/completions", None, {}, 405),
        ("POST", "/v1/embeddings", b"{}", {}, 404),
        ("POST", "/v1/completions", b" " * (LARGEST_BODY + 1), {}, 413),
        ("POST", "/v1/completions", zero, {"Host": "example.com"}, 403),
        ("POST", "/v1/completions", zero, {"Host": "[::1"}, 403),
        ("POST", "/v1/completions", zero, {"Origin": "http://example.com"}, 403),
        ("POST", "/v1/completions", zero, {"Host": "[::1]:1", "Origin": "http://[::1]:1"}, 400),
    ):
        with closing(HTTPConnection(str(host), port, timeout=60)) as connection:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            assert (answer.status, bool(json.load(answer)["error"]["message"])) == (status, True)
    with ask(served, stream=True, max_tokens=90) as cut:
        next(iter(cut))
    assert ask(served).choices


@pytest.mark.slow
def test_fields_that_ask_for_nothing_are_taken_and_overlong_prompts_have_openai_s_code(
    served: OpenAI,
) -> None:
    hints = {"modalities": ["text"], "prompt_cache_key": "a", "safety_identifier": "b"}
    assert ask(served, **hints).choices
    (first, *_) = ask(served, stream=True, stream_options={"include_usage": True})
    assert first.model_dump(exclude_unset=True)["usage"] is None
    with pytest.raises(BadRequestError) as refused:
        ask(served, messages=[{"role": "user", "content": "1 " * 99}])
    assert refused.value.code == "context_length_exceeded"
