"""Verdicts that were paid for, kept as they come, by the content of what was judged.

    FOLDER/verdicts.jsonl    {"content": digest, "verdict", "reason"}, a line each

They are one checker's, of one key, so the content is all that tells them apart. What has no verdict
is not kept: it is asked again.
"""

from pathlib import Path

from steps.checking.compared import Compared
from steps.checking.verdicts import Answered, Judgement, Verdict
from steps.shared.kept_lines import KeptLines, content_digest


class KeptVerdicts:
    """The verdicts in a folder, which may not be there yet."""

    def __init__(self, folder: Path) -> None:
        self._kept = KeptLines(folder / "verdicts.jsonl")

    def get(self, content: str) -> Judgement | None:
        """What was found of this content, if anything."""
        told = self._kept.get(content) or {}
        try:
            return Judgement(Verdict(told["verdict"]), str(told["reason"]))
        except (ValueError, KeyError):  # not kept, or of a damaged line
            return None

    def put(self, content: str, judgement: Judgement) -> None:
        """Keeps a verdict, on disk at once."""
        if judgement.verdict is not Verdict.none:
            told = {"verdict": judgement.verdict, "reason": judgement.reason}
            self._kept.put(content, told)


def content_of(asked: Answered | Compared) -> str:
    """A digest of all that a checker or a judge of pairs sees."""
    prompt = [dict(message) for message in asked.prompt]
    texts = (
        (asked.text, asked.answer)
        if isinstance(asked, Answered)
        else (asked.first, asked.second, "compared")
    )
    return content_digest([*texts, prompt])
