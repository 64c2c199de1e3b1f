"""``temper push``: what goes to a Hub, to whom it is shown, and what is never told."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from command_line import Said, temper
from hub import TOKEN, Hub, Repository, running_hub
from huggingface_hub import constants
from huggingface_hub.utils import disable_progress_bars
from places import REPOSITORY

from steps.export.card import HERE

CARD = f"---\nlibrary_name: transformers\n---\n# A model\n\n```python\n{HERE}\n```\n"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    (model / "adapter").mkdir(parents=True)
    (model / "config.json").write_text('{"model_type": "llama"}')
    (model / "model.safetensors").write_bytes(bytes(range(256)) * 64)
    (model / "adapter" / "adapter_config.json").write_text("{}")
    (model / "README.md").write_text(CARD)
    (model / ".secret").write_text("not for others")
    return model


def push(folder: Path, hub_url: str, *arguments: str, token: str | None = TOKEN) -> Said:
    """In this process, in which huggingface_hub has read its settings."""
    settings: Mapping[str, object] = {
        "ENDPOINT": hub_url,
        "HF_TOKEN_PATH": str(folder.parent / "home" / "token"),
        "HF_HUB_DISABLE_XET": True,  # else bytes go to a service of their own
    }
    disable_progress_bars()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setattr(constants, name, value)
        patch.delenv("HF_TOKEN", raising=False)
        if token:
            patch.setenv("HF_TOKEN", token)
        return temper("push", str(folder), *arguments)


def push_in_a_process(folder: Path, hub_url: str, *arguments: str) -> Said:
    """With settings from the environment, which huggingface_hub reads when it is imported."""
    environment = {
        **os.environ,
        "HF_TOKEN": TOKEN,
        "HF_ENDPOINT": hub_url,
        "HF_HOME": str(folder.parent / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": str(REPOSITORY),
    }
    done = subprocess.run(
        [Path(sys.executable).with_name("temper"), "push", str(folder), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def everything_written(folder: Path) -> str:
    files = (path for path in folder.parent.rglob("*") if path.is_file())
    return "".join(path.read_text(errors="replace") for path in files)


def test_nothing_is_sent_until_it_is_said_and_it_needs_no_network(folder: Path) -> None:
    done = push(folder, "http://127.0.0.1:9", "me/model")
    assert done.status == 0, done.err
    assert "http://127.0.0.1:9/me/model (private, if it is new)" in done.out
    assert "model.safetensors" in done.out
    assert "16.4 kB" in done.out
    assert "# A model" in done.out
    assert "nothing was sent; add --yes" in done.out
    assert ".secret" not in done.out


def test_every_file_arrives_in_a_private_repository_in_one_commit(folder: Path, hub: Hub) -> None:
    done = push_in_a_process(folder, hub.url, "me/model", "--yes", "-m", "First")
    assert done.status == 0, done.err
    made = hub.repositories["me/model"]
    assert made.private
    assert made.messages == ["First"]
    names = ["README.md", "adapter/adapter_config.json", "config.json", "model.safetensors"]
    assert made.files.keys() == set(names)
    for name in names[1:]:
        assert made.files[name] == (folder / name).read_bytes()
    assert made.files["README.md"].decode() == CARD.replace(HERE, 'model = "me/model"')
    assert f"{hub.url}/me/model/commit/" in done.out
    for text in (done.out, done.err, everything_written(folder)):
        assert TOKEN not in text


def test_a_repository_that_everybody_can_read_is_not_written_to_unasked(
    folder: Path, hub: Hub
) -> None:
    hub.repositories["me/open"] = Repository(private=False)
    done = push(folder, hub.url, "me/open", "--yes")
    assert "me/open can be read by everybody; add --public to upload to it" in done.error
    assert not hub.repositories["me/open"].files
    hub.repositories["me/closed"] = Repository(private=True)
    done = push(folder, hub.url, "me/closed", "--yes", "--public")
    assert "me/closed is private already; leave --public out" in done.error
    assert not hub.repositories["me/closed"].files
    done = push(folder, hub.url, "me/open", "--yes", "--public")
    assert done.status == 0, done.err
    assert "README.md" in hub.repositories["me/open"].files


@pytest.mark.parametrize(
    ("there", "sent", "refused"),
    [
        ("model.safetensors", "model.safetensors", False),
        ("model-00001-of-00002.safetensors", "model.safetensors", True),
        ("model.safetensors.index.json", "model.safetensors", True),
        ("model.safetensors", "model-00001-of-00002.safetensors", True),
        ("adapter_config.json", "model.safetensors", True),
        ("chat_template.jinja", "model.safetensors", True),
        ("adapter/adapter_model.safetensors", "model.safetensors", False),
        ("notes.md", "model.safetensors", False),
        ("model.safetensors", "model-F16.gguf", False),
    ],
)
def test_a_repository_whose_files_would_be_read_with_the_model_is_refused(
    there: str, sent: str, refused: bool, tmp_path: Path, hub: Hub
) -> None:
    """transformers reads model.safetensors before shards, and puts an adapter on a whole model;
    vLLM reads the shards that an index names."""
    hub.repositories["me/model"] = Repository(private=True, files={there: b"another model"})
    (tmp_path / "model").mkdir()
    for name in (sent, *(["config.json"] if "gguf" not in sent else [])):
        (tmp_path / "model" / name).write_bytes(b"{}")
    done = push(tmp_path / "model", hub.url, "me/model", "--yes")
    files = hub.repositories["me/model"].files
    assert (done.status != 0) == refused, done.err
    assert (files.get(sent) == b"{}") != refused
    assert files[there] == (b"{}" if there == sent else b"another model")
    if refused:
        assert done.error.endswith(f"hf repos delete-files me/model {there}")


@pytest.mark.parametrize(
    ("arguments", "token", "told"),
    [
        (["somebody-else/model"], TOKEN, "You don't have the rights"),
        (["me/model"], "hf_anotherTokenThatIsWrong", "hf auth whoami"),
        (["not a name"], TOKEN, "not a name"),
        (["me/model"], None, "hf auth"),
    ],
)
def test_what_a_hub_refuses_is_one_line_without_the_token(
    folder: Path, hub: Hub, arguments: list[str], token: str | None, told: str
) -> None:
    done = push(folder, hub.url, *arguments, "--yes", token=token)
    assert told in done.error
    assert token is None or token not in done.out + done.err


@pytest.mark.parametrize("file", ["model-Q8_0.gguf", "adapter_config.json"])
def test_a_gguf_file_and_adapters_alone_can_be_uploaded_too(
    file: str, tmp_path: Path, hub: Hub
) -> None:
    model = tmp_path / "other"
    model.mkdir()
    (model / file).write_bytes(b"{}")
    done = push(model, hub.url, "me/other", "--yes")
    assert done.status == 0, done.err
    assert hub.repositories["me/other"].files == {file: b"{}"}
    assert "there is no model card" in done.out
