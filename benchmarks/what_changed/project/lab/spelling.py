"""Spellings that count as one."""

LETTERS = {"é": "e", "ü": "u"}


def folded(text: str) -> str:
    for letter, plain in LETTERS.items():
        text = text.replace(letter, plain)
    return text.lower()
