"""``temper serve`` while it answers: clients that leave, answers that fail, and its own end.

No test depends on speed: an answer to "go on" ends only if the server notices that nobody reads it.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import wraps
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, cast

import pytest
from held_speaker import FAIL, GO_ON, HeldSpeaker
from http_answers import listening
from openai import APIConnectionError, APIError, InternalServerError, OpenAI
from rank_processes import start_command
from test_serving_http import free_port
from waiting import HANGS_SECONDS, wait_until

from steps.serving import replies
from steps.serving.openai_app import app_of
from steps.serving.replies import Speaker
from steps.serving.serve import serve


@wraps(serve, assigned=("__annotations__",))
def serve_held(*words: Any, **options: Any) -> None:
    """``temper serve``, of a model that goes on for ever."""
    replies.Speaker = HeldSpeaker  # pyright: ignore[reportAttributeAccessIssue]
    serve(*words, **options)


@contextmanager
def client_at(port: int) -> Iterator[OpenAI]:
    url = f"http://127.0.0.1:{port}/v1"
    with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=HANGS_SECONDS) as client:
        yield client


@contextmanager
def serving(speaker: HeldSpeaker) -> Iterator[OpenAI]:
    with listening(app_of(cast(Speaker, speaker), "model")) as port, client_at(port) as client:
        yield client


def ask(client: OpenAI, question: str, **fields: Any) -> Any:
    messages = [{"role": "user", "content": question}]
    return client.chat.completions.create(model="model", messages=messages, **fields)  # type: ignore[arg-type]


def begun(client: OpenAI) -> Any:
    """A stream of which a piece has come."""
    stream = ask(client, GO_ON, stream=True)
    assert next(iter(stream)).choices[0].delta.content == GO_ON
    return stream


def raw(client: OpenAI, stream: str) -> HTTPConnection:
    """A connection on which somebody asks, and has not read the answer."""
    connection = HTTPConnection("127.0.0.1", client.base_url.port)
    body = f'{{"model": "model", "prompt": "{GO_ON}", "stream": {stream}}}'
    connection.request("POST", "/v1/completions", body)
    return connection


def test_an_answer_ends_when_its_client_leaves() -> None:
    with serving(HeldSpeaker()) as client:
        begun(client).close()
        assert ask(client, "next").choices[0].message.content == "next"
        raw(client, "false").close()
        assert ask(client, "next").choices[0].message.content == "next"


def test_clients_that_leave_while_they_wait_for_their_turn_keep_nobody_waiting() -> None:
    speaker = HeldSpeaker()
    with serving(speaker) as client:
        first = begun(client)
        waiting = [raw(client, "false"), raw(client, "true")]
        wait_until(lambda: len(speaker.read) == 3, "all have asked")
        for connection in waiting:
            connection.close()
        assert client.models.list()  # others are answered meanwhile
        first.close()
        assert ask(client, "next").choices[0].message.content == "next"


def test_an_answer_that_fails_says_so_and_the_next_is_answered() -> None:
    with serving(HeldSpeaker()) as client:
        with pytest.raises(InternalServerError, match="RuntimeError: the model is broken"):
            ask(client, FAIL)
        client = client.with_options(max_retries=2)  # the server may close a connection
        stream = iter(ask(client, FAIL, stream=True))
        assert next(stream).choices[0].delta.content == FAIL
        with pytest.raises(APIError, match="the answer failed: the model is broken"):
            next(stream)
        assert ask(client, "next").choices[0].message.content == "next"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_server_ends_with_answers_under_way_and_lets_nobody_take_them_for_whole(
    number: signal.Signals, chat_model: Path, tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "log"
    words = [str(chat_model), "--port", str(port), "--through", "transformers"]
    read, write = os.pipe()
    with open(log, "w") as said, open(os.devnull) as nothing:
        process = start_command(serve_held, words, (nothing.fileno(), write, said.fileno()), {})
    os.close(write)
    try:
        with open(read) as printed:
            printed.readline()
        with client_at(port) as client:
            stream = begun(client)
            with closing(raw(client, "false")) as waiting:
                assert client.models.list()
                assert process.pid is not None
                os.kill(process.pid, number)
                with pytest.raises(APIConnectionError):
                    list(stream)
                answer = waiting.getresponse()
                assert (answer.status, b"the server ends" in answer.read()) == (503, True)
        process.join(HANGS_SECONDS)
        assert process.exitcode == 128 + number
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.join()
