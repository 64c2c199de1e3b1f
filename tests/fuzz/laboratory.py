"""Edits of small projects, judged by the interpreter: did the result change, and is it served?"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline.observed import native

HERE = Path(__file__).parent
Files = Mapping[str, str]
Answer = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What an edit did to a result that was made before it.

    Attributes:
        trouble: what Temper raised.
        is_of_edit: whether it did so only after the edit.
        changes: what keeps the result from being served.
    """

    laboratory: "Laboratory"
    before: Files
    after: Files
    changes: tuple[str, ...] = ()
    trouble: str = ""
    is_of_edit: bool = False

    @property
    def hit(self) -> bool:
        return not self.trouble and not self.changes

    @property
    def changed(self) -> bool:
        """Whether plain Python gives another result, where there was one."""
        was = self.laboratory.result(self.before)
        return was is not None and self.laboratory.result(self.after) != was

    @property
    def is_crash(self) -> bool:
        """Whether Temper raised where the project does not."""
        project = self.after if self.is_of_edit else self.before
        return bool(self.trouble) and self.laboratory.result(project) is not None

    def __str__(self) -> str:
        was, now = map(self.laboratory.plainly, (self.before, self.after))
        return f"    result {was} -> {now}\n    {self.trouble or self.changes or 'served'}"


class _Interpreter:
    """A process of ``interpreter.py``."""

    def __init__(self, kind: str, root: Path, cache: Path):
        environment = {"PYTHONHASHSEED": "0", "TEMPER_CACHE": str(cache)}
        self.process = subprocess.Popen(
            [sys.executable, "-B", str(HERE / "interpreter.py"), kind, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=native.preloaded({**os.environ, **environment}),
        )

    def ask(self, folder: Path, **options: Any) -> Answer:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        question = {"folder": str(folder), "options": options}
        print(json.dumps(question), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        assert line, f"the interpreter ended while it looked at {folder}"
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Laboratory:
    """Looks at states of projects, each in a folder of another name. Its interpreters start when
    they are needed, and run until it is closed.

    Args:
        root: the checkout that is judged.
    """

    def __init__(self, root: Path):
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.root = root
        self.count = 0
        self._known: dict[tuple[str, str], Answer] = {}

    @cached_property
    def plain(self) -> _Interpreter:
        return _Interpreter("plain", self.root, self.folder / "cache")

    @cached_property
    def temper(self) -> _Interpreter:
        return _Interpreter("temper", self.root, self.folder / "cache")

    def __enter__(self) -> "Laboratory":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for interpreter in {"plain", "temper"} & vars(self).keys():
            getattr(self, interpreter).close()
        shutil.rmtree(self.folder)

    def plainly(self, files: Files) -> Answer:
        """What plain Python makes of a project: ``result``, or what it ``raised``."""
        return self._once("plain", files)

    def result(self, files: Files) -> str | None:
        """What the step returns and writes; ``None`` if it raises."""
        return self.plainly(files).get("result")

    def compare(self, before: Files, after: Files) -> Verdict:
        """Run the step before an edit, and look after it whether its result would be served."""
        was, now = self.key(before), self.key(after)
        made = self.trace(before, was["arguments"]) if "key" in was else was
        if "trace" not in made:
            return Verdict(self, before, after, trouble=str(made))
        if "key" not in now:
            return Verdict(self, before, after, trouble=str(now), is_of_edit=True)
        if was["key"] != now["key"]:
            return Verdict(self, before, after, ("the key",))
        found = self._ask("temper", after, ask="changes", trace=made["trace"])
        if "changes" not in found:
            return Verdict(self, before, after, trouble=str(found), is_of_edit=True)
        return Verdict(self, before, after, tuple(found["changes"]))

    def key(self, files: Files) -> Answer:
        if "experiment.py" not in files:
            return {"key": "", "arguments": {}}
        return self._once("temper", files, ask="key")

    def trace(self, files: Files, arguments: Any) -> Answer:
        return self._once("temper", files, ask="trace", arguments=arguments)

    def _once(self, interpreter: str, files: Files, **options: Any) -> Answer:
        known = f"{interpreter} {options.get('ask')}", json.dumps(files, sort_keys=True)
        if known not in self._known:
            self._known[known] = self._ask(interpreter, files, **options)
        return self._known[known]

    def _ask(self, interpreter: str, files: Files, **options: Any) -> Answer:
        self.count += 1
        folder = self.folder / f"clone{'x' * (self.count % 7)}{self.count}"
        write(folder, files)
        answer = getattr(self, interpreter).ask(folder, **options)
        shutil.rmtree(folder)
        return answer


def write(folder: Path, files: Files) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
