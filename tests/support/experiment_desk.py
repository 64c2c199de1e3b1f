"""An experiment as a user has it before them: a script, its settings and a store."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from command_line import script
from workers_here import instead_of_processes

from pipeline import Store
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest


@dataclass
class Desk:
    """A user's desk: an experiment script, its store, a model and a data file."""

    repository: Path
    script: str
    folder: Path
    settings: tuple[str, ...]

    @property
    def store(self) -> Store:
        return Store(str(self.folder / "store"))

    def command(self, *arguments: str) -> list[str]:
        store = f"store={self.folder / 'store'}"
        return [sys.executable, f"experiments/{self.script}.py", store, *self.settings, *arguments]

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*arguments), cwd=self.repository, capture_output=True, text=True
        )
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.repository,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def here(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """As :meth:`run`, but in this process, which need not start Python, import Hydra and read
        the code of every step once more: for commands that start no step."""
        command = self.command(*arguments)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.repository)
            said = script(*command[1:])
        assert said.status == 0 or not check, said.out + said.err
        return subprocess.CompletedProcess(command, said.status, said.out, said.err)

    def run_here(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """As :meth:`run`, with driver and workers in this process, which has imported torch."""
        with pytest.MonkeyPatch.context() as patch:
            instead_of_processes(patch)
            return self.here(*arguments, check=check)

    def copy(self, folder: Path) -> "Desk":
        """A desk with a store of its own, in which lies what has been made here."""
        kept = shutil.ignore_patterns("progress")
        shutil.copytree(self.folder / "store", folder / "store", ignore=kept)
        return replace(self, folder=folder)

    def made(self, step: str) -> list[Manifest]:
        return Catalog(self.store).history(step)

    def content(self, step: str) -> Path:
        return Path(self.store.content_path(self.made(step)[-1]))

    def plan(self, *arguments: str) -> dict[str, str]:
        """Each step that is not cached, with what the plan says of it."""
        planned = {}
        for line in self.here("--plan", *arguments).stdout.splitlines():
            name, state, *why = [*re.split(r"\s{2,}", line.strip()), ""]
            if state.startswith("run"):
                planned[name.split(" ")[0]] = f"{state}: {' '.join(why)}"
        return planned
