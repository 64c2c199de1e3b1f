"""``temper push``: what goes to a Hub, to whom it is shown, and what is never told."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub import TOKEN, Hub, Repository, running_hub
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


def push(
    folder: Path, hub_url: str, *arguments: str, token: str | None = TOKEN
) -> subprocess.CompletedProcess[str]:
    """A process of its own: huggingface_hub reads its settings when it is imported."""
    home = folder.parent / "home"
    environment = {
        **{name: value for name, value in os.environ.items() if name != "HF_TOKEN"},
        **({"HF_TOKEN": token} if token else {}),
        "HF_ENDPOINT": hub_url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",  # else bytes go to a service of their own
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": str(REPOSITORY),
    }
    command = [sys.executable, "-c", _PROGRAM, "push", str(folder), *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


_PROGRAM = """
from pipeline.cli import app, main
from steps.serving.push import push
app.command("push")(push)  # also where Temper was installed before it had this command
main()
"""


def everything_written(folder: Path) -> str:
    files = (path for path in folder.parent.rglob("*") if path.is_file())
    return "".join(path.read_text(errors="replace") for path in files)


def test_nothing_is_sent_until_it_is_said_and_it_needs_no_network(folder: Path) -> None:
    done = push(folder, "http://127.0.0.1:9", "me/model")
    assert done.returncode == 0, done.stderr
    assert "http://127.0.0.1:9/me/model (private, if it is new)" in done.stdout
    assert "model.safetensors" in done.stdout
    assert "16.4 kB" in done.stdout
    assert "# A model" in done.stdout
    assert "nothing was sent; add --yes" in done.stdout
    assert ".secret" not in done.stdout


def test_every_file_arrives_in_a_private_repository_in_one_commit(folder: Path, hub: Hub) -> None:
    done = push(folder, hub.url, "me/model", "--yes", "-m", "First")
    assert done.returncode == 0, done.stderr
    made = hub.repositories["me/model"]
    assert made.private
    assert made.messages == ["First"]
    names = ["README.md", "adapter/adapter_config.json", "config.json", "model.safetensors"]
    assert made.files.keys() == set(names)
    for name in names[1:]:
        assert made.files[name] == (folder / name).read_bytes()
    assert made.files["README.md"].decode() == CARD.replace(HERE, 'model = "me/model"')
    assert f"{hub.url}/me/model/commit/" in done.stdout
    for text in (done.stdout, done.stderr, everything_written(folder)):
        assert TOKEN not in text


def test_a_repository_that_everybody_can_read_is_not_written_to_unasked(
    folder: Path, hub: Hub
) -> None:
    hub.repositories["me/open"] = Repository(private=False)
    done = push(folder, hub.url, "me/open", "--yes")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "error: everybody can read me/open; add --public to upload to it"
    )
    assert not hub.repositories["me/open"].files
    done = push(folder, hub.url, "me/open", "--yes", "--public")
    assert done.returncode == 0, done.stderr
    assert "README.md" in hub.repositories["me/open"].files


@pytest.mark.parametrize(
    ("arguments", "token", "told"),
    [
        (["somebody-else/model"], TOKEN, "the Hub refused: You don't have the rights"),
        (["me/model"], "hf_anotherTokenThatIsWrong", "check the token: hf auth whoami"),
        (["me/model"], None, "hf auth"),
    ],
)
def test_what_a_hub_refuses_is_one_line_without_the_token(
    folder: Path, hub: Hub, arguments: list[str], token: str | None, told: str
) -> None:
    done = push(folder, hub.url, *arguments, "--yes", token=token)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert token is None or token not in done.stdout + done.stderr


def test_a_server_that_repeats_the_token_is_not_repeated(folder: Path, hub: Hub) -> None:
    hub.refuse = f"the token {TOKEN} may not write here"
    done = push(folder, hub.url, "me/model", "--yes")
    assert done.returncode == 1
    assert "the token … may not write here" in done.stderr
    assert TOKEN not in done.stdout + done.stderr


def test_a_hub_that_cannot_be_reached_is_one_line(folder: Path) -> None:
    done = push(folder, "http://127.0.0.1:9", "me/model", "--yes")
    assert done.returncode == 1
    assert done.stderr.startswith("error: the upload failed: ")
    assert "Traceback" not in done.stderr


def test_a_link_is_refused_since_it_may_lead_anywhere(folder: Path, hub: Hub) -> None:
    (folder / "notes.txt").symlink_to("/etc/hostname")
    done = push(folder, hub.url, "me/model", "--yes")
    assert done.returncode == 1
    assert "notes.txt is a link" in done.stderr
    assert not hub.requests


@pytest.mark.parametrize("file", ["model-Q8_0.gguf", "adapter_config.json"])
def test_a_gguf_file_and_adapters_alone_can_be_uploaded_too(
    file: str, tmp_path: Path, hub: Hub
) -> None:
    model = tmp_path / "other"
    model.mkdir()
    (model / file).write_bytes(b"{}")
    done = push(model, hub.url, "me/other", "--yes")
    assert done.returncode == 0, done.stderr
    assert hub.repositories["me/other"].files == {file: b"{}"}
    assert "there is no model card" in done.stdout


def test_a_folder_without_a_model_is_refused(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "empty").mkdir()
    done = push(tmp_path / "empty", hub.url, "me/model", "--yes")
    assert done.returncode == 1
    assert "is no model: it has no config.json or adapter_config.json or *.gguf" in done.stderr
    assert not hub.requests


def test_a_name_that_is_no_repository_is_refused_at_once(folder: Path) -> None:
    done = push(folder, "http://127.0.0.1:9", "not a name")
    assert done.returncode == 1
    assert "'not a name' is no name of a repository" in done.stderr
