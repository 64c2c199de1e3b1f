"""A row of tokens in the terminal: what is trained on shows, and hostile text does nothing."""

import io
from pathlib import Path

import pytest
from chat_families import families
from rich.console import Console

from steps.data.parquet import write_rows
from steps.data.rows import Message, PreferenceRow
from steps.data.tables import PAIRS, to_record
from steps.data.tokenizing import TokenizeConfig
from steps.data.tokens import tokenize_folders
from steps.data.view import show_row, visible

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
    write_rows(folder / "rows/train/pairs-00000.parquet", PAIRS, map(to_record, rows))
    (folder / "out").mkdir()
    tokenize_folders(
        "pairs", folder / "rows", ["train"], folder / "tokenizer", TokenizeConfig(), folder / "out",
        folder / "scratch", lambda done, total: None,
    )  # fmt: skip
    return folder / "out"


def shown(folder: Path, row: str, **settings: object) -> str:
    stream = io.StringIO()
    show_row(folder, row, Console(file=stream, width=200, **settings))  # pyright: ignore
    return stream.getvalue()


def test_without_colour_trained_tokens_stand_in_brackets(tokens: Path) -> None:
    text = shown(tokens, "uf-1")

    assert "train  row uf-1" in text
    assert "<|im_start|>user\nCapital?<|im_end|>\n<|im_start|>assistant\n" in text
    assert "⟦Paris 🎉<|im_end|>⟧" in text
    assert "⟦Rome<|im_end|>⟧" in text
    assert "score_chosen 0.5" in text
    assert "\x1b" not in text


def test_with_colour_trained_context_and_special_tokens_differ(tokens: Path) -> None:
    text = shown(tokens, "uf-1", force_terminal=True, color_system="standard")

    assert "⟦" not in text
    styles = {
        word: text[: text.index(word)].rpartition("\x1b[")[2].partition("m")[0]
        for word in ("Paris", "Capital", "<|im_start|>")
    }
    assert len(set(styles.values())) == 3
    assert all(styles.values())


@pytest.mark.parametrize("colour", [None, "truecolor"])
def test_hostile_text_is_shown_as_text(tokens: Path, colour: str | None) -> None:
    text = shown(tokens, "uf-2", force_terminal=colour is not None, color_system=colour)

    assert r"\x1b[31m[bold]red[/bold]\x07 \u202eevil\u2069 [link=file:///]x[/link]" in text
    for character in ("\x1b[31m[bold]", "\x07", "\u202e", "\u2069", "\x1b]8"):
        assert character not in text


def test_a_dropped_row_is_shown_with_its_reason(tokens: Path) -> None:
    assert "dropped: end-of-turn inside the response: the text contains" in shown(tokens, "uf-3")


def test_a_split_can_be_looked_at_by_itself(tokens: Path) -> None:
    assert "⟦Rome<|im_end|>⟧" in shown(tokens / "train", "uf-1")


def test_a_row_that_is_not_there_is_answered_with_similar_ones(tokens: Path) -> None:
    with pytest.raises(LookupError, match=r"no row 'uf-11' among 2.*uf-1"):
        shown(tokens, "uf-11")


def test_a_folder_without_tokens_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="name a tokens artifact"):
        shown(tmp_path, "uf-1")


def test_line_breaks_stay_and_everything_else_that_steers_is_spelled_out() -> None:
    assert visible("a\nb\t\r\x1b[0m é 🎉") == "a\nb\\t\\r\\x1b[0m é 🎉"
