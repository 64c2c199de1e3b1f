"""``temper serve``: whose server it starts, where it listens, and that it ends with its command."""

import json
import os
import shlex
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import pytest
import torch
from openai import BadRequestError, NotFoundError, OpenAI
from rank_processes import start_command
from transformers import AutoModelForCausalLM, AutoTokenizer
from waiting import HANGS_SECONDS

from pipeline import TemperError
from steps.data.rows.rows import Message
from steps.generation.config import SamplingConfig
from steps.serving.engine_process import engine
from steps.serving.replies import Speaker
from steps.serving.serve import LOOPBACK, Server, serve, vllm_command

QUESTION: list[Message] = [{"role": "user", "content": "What is 1 + 2?"}]


def free_port() -> int:
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return found.getsockname()[1]


def test_vllm_is_told_of_one_model_and_listens_on_this_machine_alone() -> None:
    command = vllm_command(Path("/models/export"), "experiment/export", LOOPBACK, 8000)
    assert command[3:] == (
        "serve", "/models/export", "--served-model-name", "experiment/export",
        "--host", "127.0.0.1", "--port", "8000",
    )  # fmt: skip


@pytest.mark.parametrize("command", [partial(serve, through=Server.transformers), engine])
def test_a_model_that_cannot_be_loaded_is_told_in_a_sentence(
    command: Callable[..., None], chat_model: Path, tmp_path: Path
) -> None:
    model, torn = (Path(shutil.copytree(chat_model, tmp_path / name)) for name in ("new", "torn"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "unheard-of"}))
    with pytest.raises(TemperError, match="unheard-of"):
        command(str(model), port=free_port())
    (torn / "model.safetensors").write_bytes(bytes(100))
    with pytest.raises(TemperError, match="cannot be used: it has a model"):
        command(str(torn), port=free_port())


@pytest.fixture(scope="module")
def served(chat_model: Path) -> Iterator[OpenAI]:
    """The official client of a server, which answers its example, and ends with its command."""
    port = free_port()
    read, write = os.pipe()
    words = [str(chat_model), "--port", str(port), "--through", "transformers"]
    with open(os.devnull) as nothing:
        process = start_command(serve, words, (nothing.fileno(), write, 2), {})
    os.close(write)
    try:
        with open(read) as printed:
            first, example = printed.readline(), printed.readline()
        assert first.startswith(f"{chat_model} at http://127.0.0.1:{port}/v1, through transformers")
        _, url, _, kind, _, body = shlex.split(example)
        headers = dict([kind.split(": ")])
        with urlopen(UrlRequest(url, body.encode(), headers)) as answer:
            (choice,) = json.load(answer)["choices"]  # drawn by chance, so it may end at once
            assert choice["finish_reason"] in ("stop", "length")
        with OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0
        ) as client:
            yield client
        process.terminate()
        process.join(HANGS_SECONDS)
        assert process.exitcode == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.join()


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
    speaker, said = Speaker(chat_model), list[str]()
    speaker.write(
        speaker.prompt_of(QUESTION), SamplingConfig(24), lambda piece, _: said.append(piece)
    )
    expected = "".join(said)
    assert (choice.message.content, choice.finish_reason) == (expected, "length")
    events = list(ask(served, stream=True, stream_options={"include_usage": True}))
    assert "".join(e.choices[0].delta.content for e in events[:-1]) == expected
    usage = events[-1].usage
    assert usage.completion_tokens == 24
    assert usage.total_tokens == usage.prompt_tokens + 24
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
    for left in ({"top_k": 1}, {"min_p": 1.0}, {"top_k": -1, "top_p": 0}):
        likeliest = ask(served, temperature=2, seed=1, extra_body=left)
        assert likeliest.choices[0].message.content == expected
    short = {"max_tokens": 8, "seed": 1}  # a longer answer is too long for the next prompt
    with served.chat.completions.stream(model="model", messages=QUESTION, n=2, **short) as stream:  # type: ignore[arg-type]
        stream.until_done()
    for whole in stream.current_completion_snapshot.choices:  # which may end by their length
        assert whole.message.role == "assistant"
        fields = whole.message.model_dump(exclude={"parsed"})
        assert ask(served, messages=[*QUESTION, fields, *QUESTION], max_tokens=1).choices


LONG = [{"role": "user", "content": "1 " * 99}]
ODD: list[tuple[dict[str, Any], str]] = [
    ({"model": "gpt-4"}, "this server has 'model'"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user"}]}, "content: Field required"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'text'"),
    ({"messages": [{**QUESTION[0], "thoughts": "none"}]}, "messages.0: thoughts: this server"),
    ({"messages": LONG, "stream": True}, "model takes 96"),
    ({"temperature": -1}, "temperature"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"stop": ""}, "stop"),
    ({"tools": [{}]}, "tools: this server does not support it"),
    ({"extra_body": {"a field": 1}}, "a field: this server"),
    ({"prompt": [[10**6]]}, "the model has tokens from 0 to"),
    ({"prompt": [-1]}, "none -1"),
    ({"prompt": []}, "at least 1 item"),
    ({"prompt": [[1], "a", 2]}, "prompt.*valid"),
    ({"prompt": "1 +", "max_tokens": -1}, "max_tokens"),
    ({"prompt": [1] * 97, "max_tokens": 0}, "takes 96"),
]


@pytest.mark.slow
def test_an_odd_request_is_refused_as_openai_would(served: OpenAI) -> None:
    for fields, told in ODD:
        with pytest.raises(NotFoundError if "model" in fields else BadRequestError, match=told):
            complete(served, **fields) if "prompt" in fields else ask(served, **fields)
    with pytest.raises(BadRequestError) as refused:
        ask(served, messages=LONG)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.slow
def test_a_broken_request_gets_an_error_object_and_a_cut_one_harms_nobody(served: OpenAI) -> None:
    host, port = served.base_url.host, served.base_url.port
    odd = b'{"model": "model", "prompt": "1 +", "suffix": "0"}'
    for method, path, body, headers, status in (
        ("POST", "/v1/chat/completions", b"{", {}, 400),
        ("POST", "/v1/completions", odd, {}, 400),
        ("GET", "/v1/chat/completions", None, {}, 405),
        ("POST", "/v1/embeddings", b"{}", {}, 404),
        ("POST", "/v1/completions", odd, {"Origin": "http://example.com"}, 403),
        ("POST", "/v1/completions", odd, {"Host": "[::1]:1", "Origin": "http://[::1]:1"}, 400),
    ):
        with closing(HTTPConnection(str(host), port, timeout=60)) as connection:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            assert (answer.status, bool(json.load(answer)["error"]["message"])) == (status, True)
    for name in ("example.com", "[::1"):  # a page may move a name of its own to this address
        with closing(HTTPConnection(str(host), port, timeout=60)) as connection:
            connection.request("POST", "/v1/completions", odd, {"Host": name})
            assert connection.getresponse().read() == b"Invalid host header"
    with ask(served, stream=True, max_tokens=90) as cut:
        next(iter(cut))
    assert ask(served).choices


@pytest.mark.slow
def test_fields_that_ask_for_nothing_are_taken(served: OpenAI) -> None:
    hints = {"modalities": ["text"], "prompt_cache_key": "a", "safety_identifier": "b"}
    assert ask(served, **hints).choices
    (first, *_) = ask(served, stream=True, stream_options={"include_usage": True})
    assert first.model_dump(exclude_unset=True)["usage"] is None


def complete(client: OpenAI, prompt: Any, **fields: Any) -> Any:
    return client.completions.create(model="model", prompt=prompt, temperature=0, **fields)


@pytest.mark.slow
def test_a_prompt_may_be_token_ids_and_is_scored_where_it_is_echoed(
    served: OpenAI, chat_model: Path
) -> None:
    """The log-probabilities are those of a plain forward by transformers."""
    tokenizer: Any = AutoTokenizer.from_pretrained(chat_model)
    ids = tokenizer("12 + 3 = 15").input_ids
    of_ids, of_text = complete(served, [ids, tokenizer("1 +").input_ids], max_tokens=4).choices
    assert of_ids.text == complete(served, "12 + 3 = 15", max_tokens=4).choices[0].text
    assert of_text.text == complete(served, "1 +", max_tokens=4).choices[0].text

    model = AutoModelForCausalLM.from_pretrained(chat_model, dtype=torch.float32)
    with torch.no_grad():
        logps = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    expected = [row[token].item() for row, token in zip(logps, ids[1:], strict=False)]
    (scored,) = complete(served, [ids], max_tokens=0, echo=True, logprobs=3).choices
    first, *values = scored.logprobs.token_logprobs
    assert first is None
    assert values == pytest.approx(expected, abs=1e-5)
    for row, likeliest in zip(logps, scored.logprobs.top_logprobs[1:], strict=False):
        assert max(likeliest.values()) == pytest.approx(row.max().item(), abs=1e-5)
        assert 3 <= len(likeliest) <= 4
    assert "".join(scored.logprobs.tokens) == scored.text == tokenizer.decode(ids)

    (drawn,) = complete(served, [ids], max_tokens=4, logprobs=0).choices
    assert len(drawn.logprobs.token_logprobs) == 4
    assert drawn.logprobs.top_logprobs is None
    assert all(logp < 0 for logp in drawn.logprobs.token_logprobs)
    echoed = complete(served, "1 +", max_tokens=4, echo=True, stream=True)
    assert "".join(part.choices[0].text for part in echoed) == "1 +" + of_text.text


@pytest.mark.slow
def test_the_logprobs_of_a_chat_and_of_a_stream_are_those_of_the_tokens(
    served: OpenAI, chat_model: Path
) -> None:
    """For clients that train, tokens come as ids, as from vLLM."""
    (whole,) = ask(served, logprobs=True, top_logprobs=2, max_tokens=6).choices
    content = whole.logprobs.content
    assert b"".join(bytes(token.bytes) for token in content).decode() == whole.message.content
    for token in content:
        first, second = token.top_logprobs
        assert (token.token, token.logprob) == (first.token, first.logprob)  # it is the likeliest
        assert second.logprob <= first.logprob
    streamed = ask(served, logprobs=True, top_logprobs=2, max_tokens=6, stream=True)
    parts = [part.choices[0].logprobs.content for part in streamed]
    assert [token for part in parts for token in part] == content

    as_ids = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    answer = ask(served, logprobs=True, max_tokens=6, extra_body=as_ids)
    ids = answer.choices[0].token_ids
    assert [token.token for token in answer.choices[0].logprobs.content] == [
        f"token_id:{token}" for token in ids
    ]
    (more,) = complete(
        served, [answer.prompt_token_ids], max_tokens=6, logprobs=1, extra_body=as_ids
    ).choices
    assert (more.token_ids, more.prompt_token_ids) == (ids, answer.prompt_token_ids)
    assert more.logprobs.token_logprobs == [token.logprob for token in content]
    assert (
        AutoTokenizer.from_pretrained(chat_model).decode(ids, skip_special_tokens=True) == more.text
    )


@pytest.mark.slow
def test_lm_eval_scores_choices_through_the_server_as_it_does_in_its_own_process(
    served: OpenAI, chat_model: Path
) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    pairs = [("1 + 2 =", " 3"), ("1 + 2 =", " 4"), ("12 + 30 is", " 42."), ("12 + 30", " is 41.")]
    asked: Any = [
        Instance("loglikelihood", {}, pair, at, metadata=("task", 0, 1))
        for at, pair in enumerate(pairs)
    ]
    url, name = f"{served.base_url}completions", str(chat_model)
    untyped: Any = HFLM
    expected = untyped(pretrained=name, device="cpu", dtype="float32").loglikelihood(asked)
    untyped = LocalCompletionsAPI
    for batch in (1, 3):
        ours = untyped(base_url=url, model="model", tokenizer=name, batch_size=batch)
        for found, known in zip(ours.loglikelihood(asked), expected, strict=True):
            assert found[0] == pytest.approx(known[0], abs=1e-4)
            assert found[1] == known[1]
