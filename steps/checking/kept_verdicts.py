"""Verdicts that were paid for, kept as they come, by the content of what was judged.

    FOLDER/verdicts.jsonl    {"content": digest, "verdict", "reason"}, a line each

They are one checker's, of one key, so the content is all that tells them apart. A line that cannot
be read, as its writer was killed, is as good as none. What has no verdict is not kept: it is asked
again.
"""

import hashlib
import json
from pathlib import Path

from steps.checking.compared import Compared
from steps.checking.verdicts import Answered, Judgement, Verdict


class KeptVerdicts:
    """The verdicts in a folder, which may not be there yet."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "verdicts.jsonl"
        self._found: dict[str, Judgement] = {}
        if self._file.is_file():
            for line in self._file.read_text("utf-8", errors="replace").splitlines():
                self._read(line)

    def get(self, content: str) -> Judgement | None:
        """What was found of this content, if anything."""
        return self._found.get(content)

    def put(self, content: str, judgement: Judgement) -> None:
        """Keeps a verdict, on disk at once."""
        if judgement.verdict is Verdict.none:
            return
        self._found[content] = judgement
        told = {"content": content, "verdict": judgement.verdict, "reason": judgement.reason}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps(told)}\n")  # also after half a line

    def _read(self, line: str) -> None:
        try:
            told = json.loads(line)
            judgement = Judgement(Verdict(told["verdict"]), str(told["reason"]))
            self._found[str(told["content"])] = judgement
        except (ValueError, TypeError, KeyError):
            return


def content_of(asked: Answered | Compared) -> str:
    """A digest of all that a checker or a judge of pairs sees."""
    prompt = [dict(message) for message in asked.prompt]
    texts = (
        (asked.text, asked.answer)
        if isinstance(asked, Answered)
        else (asked.first, asked.second, "compared")
    )
    seen = json.dumps([*texts, prompt], sort_keys=True, default=repr)
    return hashlib.blake2b(seen.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
