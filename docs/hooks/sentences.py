"""Finds sentences that a reader must read twice because they are too long."""

import re
from collections.abc import Iterator

MOST_WORDS = 30

_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]*`")
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*|>#]|\d+\.)\s?)|(?<=\S)\s*\|\s*(?=\S)")
"""Where another paragraph, item, heading, row or cell begins."""
_END = re.compile(r"(?<=[.!?])[\"”)*_]*\s+(?=[\"“(*_`A-Z0-9–])")


def long_sentences(markdown: str, most: int = MOST_WORDS) -> Iterator[str]:
    """The sentences of a page with more words than ``most``; code is one word, a block none."""
    text = _LINK.sub(r"\1", _FENCE.sub("", markdown))
    codes = iter(_CODE.findall(text))
    text = _CODE.sub("`", text)
    for block in _BLOCK.split(text):
        for sentence in _END.split(block):
            words = [word for word in sentence.split() if re.search(r"\w|`", word)]
            spelled = re.sub("`", lambda _: next(codes, "`"), " ".join(sentence.split()))
            if len(words) > most:
                yield f"{len(words)} words: {spelled}"
