"""Edits of small projects, judged by the interpreter: did the result change, and did the key?"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).parent
Files = Mapping[str, str]


@dataclass(frozen=True)
class Observation:
    """What one state of a project gives: plainly, and as a key.

    Attributes:
        run: runs the step as plain Python does; called when somebody asks for the result.
        key: ``None`` if Temper refuses the step or fails.
        trouble: why there is no key.
        failed: Temper ended with something other than an error of its own.
    """

    run: Callable[[], Mapping[str, str]]
    key: str | None
    units: Mapping[str, str] = field(default_factory=dict)
    arguments: Any = None
    types: tuple[str, ...] = ()
    trouble: str = ""
    failed: bool = False

    @cached_property
    def plain(self) -> Mapping[str, str]:
        return self.run()

    @property
    def result(self) -> str | None:
        """What the step returns and writes; ``None`` if it raises."""
        return self.plain.get("result")

    @property
    def raised(self) -> str:
        """What it raises then."""
        plain = self.plain
        return f"{plain.get('raised', '')}: {plain.get('text', plain.get('error', ''))}"


@dataclass(frozen=True)
class Verdict:
    """What an edit did."""

    before: Observation
    after: Observation

    @property
    def changed(self) -> bool:
        """Whether plain Python gives another result, where there was one."""
        return self.before.result is not None and self.after.result != self.before.result

    @property
    def unchanged(self) -> bool:
        return self.before.result is not None and self.after.result == self.before.result

    @property
    def hit(self) -> bool:
        """Whether the result of before would be served after the edit."""
        return self.before.key is not None and self.after.key == self.before.key

    @property
    def false_hit(self) -> bool:
        return self.hit and self.changed

    @property
    def needless(self) -> bool:
        return not self.hit and self.unchanged

    @property
    def units(self) -> list[str]:
        """The units that differ."""
        return sorted({unit for unit, _ in self.before.units.items() ^ self.after.units.items()})


class _Interpreter:
    """A process of ``interpreter.py``."""

    def __init__(self, kind: str, root: Path, cache: Path, hash_seed: int):
        environment = {"PYTHONHASHSEED": str(hash_seed), "TEMPER_CACHE": str(cache)}
        self.process = subprocess.Popen(
            [sys.executable, "-B", str(HERE / "interpreter.py"), kind, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def ask(self, folder: Path, **options: Any) -> dict[str, Any]:
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
    """Looks at states of projects. Its interpreters start when they are needed, and run until it
    is closed.

    Args:
        root: the checkout whose keys are judged.
        hash_seed: the ``PYTHONHASHSEED`` of the process that works keys out.
    """

    def __init__(self, root: Path, hash_seed: int = 1):
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.root, self.hash_seed = root, hash_seed
        self.count = 0
        self._seen: dict[str, Observation] = {}

    @cached_property
    def plain(self) -> _Interpreter:
        return _Interpreter("plain", self.root, self.folder / "cache", 0)

    @cached_property
    def keys(self) -> _Interpreter:
        return _Interpreter("key", self.root, self.folder / "cache", self.hash_seed)

    def __enter__(self) -> "Laboratory":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for interpreter in {"plain", "keys"} & vars(self).keys():
            getattr(self, interpreter).close()
        shutil.rmtree(self.folder)

    def observe(self, files: Files) -> Observation:
        """One state of a project. Every new state lies in a folder of another name."""
        known = json.dumps(files, sort_keys=True)
        if known not in self._seen:
            self._seen[known] = self._observe(files)
        return self._seen[known]

    def compare(self, before: Files, after: Files) -> Verdict:
        return Verdict(self.observe(before), self.observe(after))

    def observed_changes(self, before: Files, after: Files) -> list[str]:
        """What of that which a worker observes before an edit is not the same after it."""
        state = self.observe(before)
        known = {"arguments": state.arguments, "types": state.types}
        seen = self._ask(self.keys, before, ask="observe", **known)
        if "discovered" not in seen:
            return [f"the worker fails: {seen}"]
        found = self._ask(self.keys, after, ask="changes", discovered=seen["discovered"])
        return found.get("changes") or ([] if "changes" in found else [str(found)])

    def _folder(self) -> Path:
        """Every state of a project lies in a folder of another name."""
        self.count += 1
        return self.folder / f"clone{'x' * (self.count % 7)}{self.count}"

    def keys_of(self, sources: Sequence[str]) -> list[str]:
        """The key of a step that calls ``helper`` in each of these modules, which never run."""
        folder = self.folder / "fragments"
        names = [f"fragment{number}" for number in range(len(sources))]
        step = "def train(out):\n    from helper_of_{} import helper\n    return helper(out)\n"
        write(folder, {f"{name}.py": step.format(name) for name in names})
        write(folder, {f"helper_of_{n}.py": s for n, s in zip(names, sources, strict=True)})
        answer = self.keys.ask(folder, ask="modules", modules=names)
        shutil.rmtree(folder)
        assert "keys" in answer, answer
        return answer["keys"]

    def _observe(self, files: Files) -> Observation:
        key = self._ask(self.keys, files)
        return Observation(
            lambda: self._ask(self.plain, files),
            key.get("key"),
            key.get("units", {}),
            key.get("arguments"),
            tuple(key.get("types", ())),
            key.get("refused") or key.get("trace") or key.get("error", ""),
            failed="error" in key,
        )

    def _ask(self, interpreter: _Interpreter, files: Files, **options: Any) -> dict[str, Any]:
        folder = self._folder()
        write(folder, files)
        answer = interpreter.ask(folder, **options)
        shutil.rmtree(folder)
        return answer


def write(folder: Path, files: Files) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
