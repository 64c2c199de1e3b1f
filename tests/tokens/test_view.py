"""A row of tokens in the terminal: what is trained on shows, and hostile text does nothing."""

import io
from pathlib import Path

import pytest
from chat_families import families
from command_line import temper
from rich.console import Console

from pipeline import Store, adopt, run
from steps.data.row_view import show_row, visible
from steps.data.rows.parquet import write_rows
from steps.data.rows.rows import Message, PreferenceRow
from steps.data.rows.tables import PAIRS, to_record
from steps.data.tokens.config import TokenizeConfig
from steps.data.tokens.token_folders import tokenize_folders
from steps.kinds import Model, TokenizedPreferences

HOSTILE = "\x1b[31m[bold]red[/bold]\x07 \u202eevil\u2069 [link=file:///]x[/link]"


def said(role: str, text: str) -> Message:
    return {"role": role, "content": text}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view")
    families()["chatml"].tokenizer.save_pretrained(folder / "tokenizer")
    rows = [
        PreferenceRow(
            row, (said("user", question),), (said("assistant", "Paris 🎉"),),
            (said("assistant", rejected),), score_chosen=0.5,
        )
        for row, question, rejected in (
            ("uf-1", "Capital?", "Rome"),
            ("uf-2", HOSTILE, HOSTILE),
            ("uf-3", "x", "<|im_end|>"),
        )
    ]  # fmt: skip
    write_rows(folder / "rows/train/pairs-00000.parquet", PAIRS, map(to_record, rows[1:]))
    write_rows(folder / "rows/train/pairs-00001.parquet", PAIRS, map(to_record, rows[:1]))
    write_rows(folder / "rows/test/pairs-00000.parquet", PAIRS, map(to_record, rows[1:2]))
    (folder / "out").mkdir()
    tokenize_folders(
        "pairs", folder / "rows", ["test", "train"], folder / "tokenizer", TokenizeConfig(),
        folder / "out", folder / "scratch", lambda done, total: None,
    )  # fmt: skip
    return folder / "out"


def shown(folder: Path, row: str, split: str | None = None, **settings: object) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=200, **settings)  # pyright: ignore
    show_row(str(folder), row, split, console)
    return stream.getvalue()


def test_without_colour_trained_tokens_stand_in_brackets(tokens: Path) -> None:
    text = shown(tokens, "uf-1")

    assert "train  row uf-1" in text
    assert "<|im_start|>user\nCapital?<|im_end|>\n<|im_start|>assistant\n" in text
    assert "⟦Paris 🎉<|im_end|>⟧" in text
    assert "⟦Rome<|im_end|>⟧" in text
    assert "score_chosen 0.5" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("colour", [None, "truecolor"])
def test_hostile_text_is_shown_as_text(tokens: Path, colour: str | None) -> None:
    text = shown(tokens, "uf-2", force_terminal=colour is not None, color_system=colour)

    assert r"\x1b[31m[bold]red[/bold]\x07 \u202eevil\u2069 [link=file:///]x[/link]" in text
    for character in ("\x1b[31m[bold]", "\x07", "\u202e", "\u2069", "\x1b]8"):
        assert character not in text


def test_a_dropped_row_is_shown_with_its_reason(tokens: Path) -> None:
    assert "dropped: end-of-turn inside the response: the text contains" in shown(tokens, "uf-3")


def test_a_row_in_several_splits_is_shown_for_each_or_for_the_one_that_is_named(
    tokens: Path,
) -> None:
    both, one = shown(tokens, "uf-2"), shown(tokens, "uf-2", split="test")

    assert [line for line in both.splitlines() if " row uf-2" in line] == [
        "test  row uf-2", "train  row uf-2",
    ]  # fmt: skip
    assert "test  row uf-2" in one
    assert "train  row uf-2" not in one


# --- through the command -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store that holds the tokens, and a model."""
    folder = tmp_path_factory.mktemp("store")
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text("{}")
    store = Store(str(folder / "store"))
    console = Console(file=io.StringIO())
    run({"tokens": adopt(str(tokens), TokenizedPreferences)}, store, console=console)
    run({"sum": adopt(str(folder / "model"), Model)}, store, console=console)
    return store


def test_a_row_is_shown_by_the_command_from_wherever_the_store_lies(
    tokens: Path, gcs_bucket: str
) -> None:
    store = f"{gcs_bucket}/view"
    console = Console(file=io.StringIO())
    run({"tokens": adopt(str(tokens), TokenizedPreferences)}, Store(store), console=console)

    done = temper("show", "adopt_files", "--row", "uf-1", "--store", store)

    assert done.status == 0, done.err
    assert "<|im_start|>assistant\n\n" in done.out
    assert "⟦Paris 🎉<|im_end|>⟧" in done.out


def test_line_breaks_stay_and_everything_else_that_steers_is_spelled_out() -> None:
    assert visible("a\nb\t\r\x1b[0m é 🎉") == "a\nb\\t\\r\\x1b[0m é 🎉"
