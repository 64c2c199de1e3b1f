"""``temper push``: upload a model folder to a Hub.

Without ``--yes``, the command only shows the files that it would upload, and needs no network. A
new repository is private unless ``--public`` is given; without ``--public``, the command does not
write to a public repository. Other files of a repository stay, so one with files that would be read
with the model is refused. The token comes from ``hf auth login`` or ``HF_TOKEN`` and is passed
only to huggingface_hub.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from pipeline import TemperError
from pipeline.base.redaction import shown
from pipeline.base.text import clean, cut, visible
from pipeline.show.terminal import make_console
from steps.serving.named_models import ADAPTERS, GGUF, WHOLE, ModelName, StoreUrl, opened

CARD = "README.md"
_READ_WITH = re.compile(
    r"[^/]+\.safetensors(\.index\.json)?|adapter_config\.json|chat_template\.jinja"
    r"|additional_chat_templates/.+"
)
"""The files of a repository that readers join to a model without being asked: they would put an
adapter on it, take the shards that an index names, or the file beside them."""
_CARD_LINES_SHOWN = 40


def push(
    name: ModelName,
    repo: Annotated[str, typer.Argument(metavar="REPO", help="For example my-name/my-model.")],
    public: Annotated[bool, typer.Option("--public", help="Make it public.")] = False,
    message: Annotated[str, typer.Option("--message", "-m", help="Commit message.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Upload the files.")] = False,
    store: StoreUrl = "store",
) -> None:
    """Show what an upload of a model to a Hub would send; --yes sends it.

    A new repository is private unless --public is given.
    """
    console = make_console()
    with opened(name, store, (WHOLE, ADAPTERS, GGUF)) as model:
        files = files_of(model.folder)
        model.require_committed(files.values())
        _show(console, repo, files, public)
        if not yes:
            console.print(Text("nothing was sent; add --yes to upload"))
            return
        said = message or f"Upload {name}"
        console.print(Text(visible(_upload(files, repo, public, said))), soft_wrap=True)


def files_of(folder: Path) -> Mapping[str, Path]:
    """The files to upload by their paths in the repository: all except hidden files.

    Raises:
        TemperError: the folder contains a symbolic link, which might lead out of the folder.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_symlink():
            raise TemperError(f"{path} is a link; replace it by the file that is meant")
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            found[name.as_posix()] = path
    return found


def _upload(files: Mapping[str, Path], repo: str, public: bool, message: str) -> str:
    """Create the repository if necessary, and upload all files in one commit; return its URL. The
    snippet of the model card names the repository, so it runs anywhere."""
    from huggingface_hub import CommitOperationAdd, HfApi

    from steps.export.card import HERE

    api = HfApi(library_name="temper")
    with _told_without_secrets():
        created = api.create_repo(repo, private=not public, exist_ok=True)
        there = api.model_info(created.repo_id)
        if public == bool(there.private):
            is_there = "is private already" if public else "can be read by everybody"
            remedy = "leave --public out" if public else "add --public"
            raise TemperError(f"{repo} {is_there}; {remedy} to upload to it")
        _require_own(repo, files, [file.rfilename for file in there.siblings or ()])
        sent: dict[str, Path | bytes] = {**files}
        if CARD in files:
            own = f"model = {json.dumps(repo)}".encode()
            sent[CARD] = files[CARD].read_bytes().replace(HERE.encode(), own)
        additions = [CommitOperationAdd(name, content) for name, content in sent.items()]
        return api.create_commit(created.repo_id, additions, commit_message=message).commit_url


def _require_own(repo: str, files: Mapping[str, Path], there: Sequence[str]) -> None:
    """Raise TemperError if a repository has files of another model that would be read with this
    one, as after a model in more shards. A GGUF file is read alone."""
    others = sorted(name for name in there if name not in files and _READ_WITH.fullmatch(name))
    if others and {WHOLE, ADAPTERS} & files.keys():
        raise TemperError(
            f"{repo} has files of another model, which would be read with this one; name another "
            f"repository, or first run: hf repos delete-files {shlex.join([repo, *others])}"
        )


@contextmanager
def _told_without_secrets() -> Iterator[None]:
    """Turn errors of the Hub or the network into one line without secrets."""
    from huggingface_hub import constants, get_token

    try:
        yield
    except TemperError:
        raise
    except Exception as error:  # versions use different HTTP libraries; tracebacks have headers
        said = str(getattr(error, "server_message", "") or error.__cause__ or error)
        said, token = cut(visible(said)) or type(error).__name__, get_token()
        said = shown(said.replace(token, "…") if token else said)
        raise TemperError(
            f"the upload to {constants.ENDPOINT} failed: {said.rstrip('.')}; see who is logged in "
            "(hf auth whoami), or run it again to go on"
        ) from None


def _show(console: Console, repo: str, files: Mapping[str, Path], public: bool) -> None:
    from huggingface_hub.constants import ENDPOINT

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    sizes = {name: path.stat().st_size for name, path in files.items()}
    for name, size in {**sizes, "in all": sum(sizes.values())}.items():
        table.add_row(Text(visible(name)), decimal(size))
    who = "for everybody to read" if public else "private, if it is new"
    console.print(Text(f"to {ENDPOINT}/{repo} ({who}):", "bold"), soft_wrap=True)
    console.print(table)
    if CARD not in files:
        line = f"there is no model card ({CARD}): export_hf writes that of a language model"
        console.print(Text(line, "yellow"))
        return
    card = files[CARD].read_text(encoding="utf-8", errors="replace").splitlines()
    for line in [CARD, *card[:_CARD_LINES_SHOWN]]:
        console.print(Text(clean(line)), soft_wrap=True)
