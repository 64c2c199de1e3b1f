"""``temper chat``: what it answers, beside whom, and what it says where it cannot."""

import contextlib
import os
import pty
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from rank_processes import start_command
from transformers import AutoModelForSequenceClassification
from typer.testing import CliRunner
from waiting import HANGS_SECONDS, wait_until

from pipeline import Store, TemperError
from pipeline.store.catalog import Catalog
from pipeline.store.runs import names_of_runs, read_run
from steps.data.rows.rows import Message
from steps.data.tokens.rendering import Chat, load_tokenizer
from steps.data.tokens.tokenizing import tokenization, tokenize_prompts
from steps.generation.config import SamplingConfig
from steps.generation.sampling import decoded, end_tokens, make_requests, sample
from steps.generation.slots import SlotEngine
from steps.models.folders import load_model
from steps.serving.chatting import chat
from steps.serving.named_models import opened
from steps.serving.replies import Speaker

PROMPT = "What is 1 + 2?"


@pytest.fixture(scope="session")
def speaker(chat_model: Path) -> Speaker:
    return Speaker(chat_model)


def ask(speaker: Speaker, prompt: str = PROMPT, **drawing: float) -> str:
    question: Message = {"role": "user", "content": prompt}
    settings = SamplingConfig(**{"max_new_tokens": 12, **drawing})  # type: ignore[arg-type]
    return written(speaker, speaker.prompt_of([question]), settings)[0]


def written(
    speaker: Speaker, ids: list[int], drawing: SamplingConfig, continues: bool = False
) -> tuple[str, list[int]]:
    pieces, drawn = [], list[int]()

    def hear(piece: str, token: Any) -> None:
        pieces.append(piece)
        drawn.extend([token[0]] if token else [])

    speaker.write(ids, drawing, hear, continues)
    return "".join(pieces), drawn


def call(*arguments: str, stdin: str = "") -> str:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(chat)
    result = CliRunner().invoke(app, [*arguments, "--max-new-tokens", "12"], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_likeliest_answer_is_what_sampling_in_steps_gives(
    speaker: Speaker, chat_model: Path
) -> None:
    tokenizer = load_tokenizer(chat_model)
    (ids,) = tokenize_prompts(
        tokenization(tokenizer), [Chat(({"role": "user", "content": PROMPT},))]
    )
    assert isinstance(ids, list)
    config = SamplingConfig(max_new_tokens=12)
    ((drawn,),) = sample(load_model(chat_model), tokenizer, [("1", ids)], config)
    assert ask(speaker) == decoded(tokenizer, drawn.ids) != ""


def test_an_answer_is_drawn_as_a_completion_is(speaker: Speaker) -> None:
    ids = speaker.prompt_of([{"role": "user", "content": PROMPT}])
    drawing = SamplingConfig(12, 1.5, 1, 7, top_p=0.9, top_k=20, min_p=0.01)
    ends = end_tokens(speaker.model, speaker.tokenizer)
    requests = make_requests([("", ids)], drawing, ends)
    (done,) = SlotEngine(speaker.model, "").sample(requests, "")
    assert written(speaker, ids, drawing)[1] == list(done.ids)


def test_a_prompt_is_answered_on_standard_output_and_nothing_else_is_there(
    chat_model: Path, speaker: Speaker
) -> None:
    assert call(str(chat_model), "--prompt", PROMPT) == f"{ask(speaker)}\n"
    assert call(str(chat_model), stdin=f"{PROMPT}\n") == f"{ask(speaker)}\n"


def test_a_model_without_a_template_continues_text(chat_model: Path, tmp_path: Path) -> None:
    base = shutil.copytree(chat_model, tmp_path / "base")
    (base / "chat_template.jinja").unlink()
    plain = Speaker(base)
    ids = plain.tokens_of("What is")
    expected, _ = written(plain, ids, SamplingConfig(max_new_tokens=12), continues=True)
    assert call(str(base), "-p", "What is") == f"{expected}\n"
    with pytest.raises(TemperError, match="has no chat template, so it takes no --system"):
        call(str(base), "-p", "What is", "--system", "Be brief.")


def experiment_of(store: Store) -> str:
    return read_run(store, names_of_runs(store)[-1]).experiment


def test_a_result_is_named_by_its_experiment_and_knows_what_it_was_before(trained: Store) -> None:
    (before,) = Catalog(trained).history("adopt_files")
    key = f"adopt_files@{before.key}"
    for name in (f"{experiment_of(trained)}/export", "handed_over", "tuned"):
        with opened(name, trained.url) as model:
            assert (model.folder / "config.json").is_file()
            assert model.before == key
            with opened(key, trained.url) as earlier:
                assert earlier.before is None
                assert earlier.name == before.name


def cut_off(model: Path) -> None:
    with (model / "model.safetensors").open("r+b") as weights:
        weights.truncate(1000)


def rewarding(model: Path) -> None:
    body = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1)
    body.save_pretrained(model)


def greedy(model: Path) -> None:
    (model / "generation_config.json").write_text('{"num_return_sequences": 3}')


def holding(*files: str) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        shutil.rmtree(model)
        model.mkdir()
        for file in files:
            (model / file).write_text("{}")

    return change


def nothing(model: Path) -> None: ...


MISTAKES: list[tuple[Callable[[Path], None], list[str], str]] = [
    (nothing, ["model", "-p", " "], "the prompt is empty"),
    (nothing, ["model"], "the prompt is empty"),
    (nothing, ["model", "-p", "caf\udce9"], "codec can't encode character"),
    (nothing, ["no-model", "-p", "a", "--top-p", "0", "--temperature", "1"], "top_p must be above"),
    (nothing, ["no-model", "-p", "a", "--min-p", "0.1"], "at temperature 0 the likeliest token is"),
    (nothing, ["/nowhere/model", "-p", "a"], "there is no folder /nowhere/model"),
    (holding("a.gguf"), ["model/a.gguf", "-p", "a"], r"a GGUF file runs in llama\.cpp"),
    (holding("a.gguf"), ["model", "-p", "a"], r"a GGUF file runs in llama\.cpp"),
    (holding("adapter_config.json"), ["model", "-p", "a"], "adapters alone must be merged"),
    (holding("notes.txt"), ["model", "-p", "a"], r"is no model: it has no config\.json"),
    (cut_off, ["model", "-p", "a"], r"model cannot be used: it has a model\.safetensors that"),
    (rewarding, ["model", "-p", "a"], r"lacks lm_head\.weight: it is no language model"),
    (greedy, ["model", "-p", "a"], "cannot load the model of model: .*num_return_seq"),
]


@pytest.mark.parametrize(("change", "words", "told"), MISTAKES)
def test_a_mistake_is_one_sentence(
    change: Callable[[Path], None],
    words: list[str],
    told: str,
    chat_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    change(Path(shutil.copytree(chat_model, "model")))
    with pytest.raises(TemperError, match=told):
        call(*words, stdin=" \n")


class Terminal:
    """A person's terminal in which a conversation is held."""

    def __init__(self, *arguments: str) -> None:
        self.here, there = pty.openpty()
        environment = {"TERM": "xterm", "COLUMNS": "100"}
        self.process = start_command(chat, arguments, [there] * 3, environment)
        os.close(there)
        os.set_blocking(self.here, False)
        self.seen = ""

    def wait_for(self, text: str, times: int) -> None:
        def is_there() -> bool:
            with contextlib.suppress(OSError):  # nothing there yet, or the other side is gone
                self.seen += os.read(self.here, 65536).decode(errors="replace")
            return self.seen.count(text) >= times

        wait_until(is_there, f"{text!r} in {self.seen!r}", 300)

    def write(self, text: str) -> None:
        os.write(self.here, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        os.close(self.here)


def test_a_conversation_on_a_terminal_is_beside_the_model_before(
    trained: Store, speaker: Speaker
) -> None:
    terminal = Terminal("handed_over", "--store", trained.url, "--max-new-tokens", "12")
    try:
        terminal.wait_for("> ", 1)
        assert "handed_over beside adopt_files@" in terminal.seen
        terminal.write(f"{PROMPT}\n")
        terminal.wait_for("> ", 2)
        shown = "".join(terminal.seen.split())
        assert shown.count("".join(ask(speaker).split())) >= 2  # in either column
        terminal.write("/clear\n")
        terminal.wait_for("> ", 3)
        terminal.write("/help\n")
        terminal.wait_for("> ", 4)
        assert "there is no /help: /clear begins anew, /exit or Ctrl-D ends" in terminal.seen
        terminal.write("\x04")
        terminal.process.join(HANGS_SECONDS)
        assert terminal.process.exitcode == 0
    finally:
        terminal.close()
