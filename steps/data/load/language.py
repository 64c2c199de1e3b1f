"""Guesses the language of a text with py3langid, whose package contains its model of 97 languages.

It guesses from the letters and needs about a sentence. Texts with fewer letters than `SHORTEST`
have no language.
"""

from dataclasses import dataclass
from typing import ClassVar

from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Messages, PreferenceRow

SHORTEST = 20


@dataclass(frozen=True)
class Languages:
    """The languages of the rows that are kept.

    Args:
        codes: codes of ISO 639-1, such as ``en``.
    """

    needs_packages: ClassVar[tuple[str, ...]] = ("py3langid",)

    codes: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.codes or any(len(code) != 2 for code in self.codes):
            raise ValueError(f"languages are named by two letters, as in en, got {self.codes}")

    def check(self, row: PreferenceRow) -> None:
        """Raise MalformedRow for a row with a part in another language."""
        for part, messages in (
            ("prompt", row.prompt),
            ("chosen", row.chosen),
            ("rejected", row.rejected),
        ):
            found = language(_said(messages))
            if found and found not in self.codes:
                wanted = ", ".join(self.codes)
                raise MalformedRow("other language", f"{part} is in {found}, wanted is {wanted}")


def language(text: str) -> str:
    """The code of the language of a text; empty if the text is too short."""
    from py3langid import classify

    if sum(map(str.isalpha, text)) < SHORTEST:
        return ""
    return str(classify(text)[0])


def _said(messages: Messages) -> str:
    """What is said, but for system prompts and the results of tools."""
    spoken = (m["content"] for m in messages if m["role"] in ("user", "assistant"))
    return "\n".join(spoken)
