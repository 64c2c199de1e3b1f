"""The DAG of ``work.py`` in bare Luigi: one side of ``overhead.py``.

    python luigi_dag.py all FOLDER STEPS NAMES REPORT      ask for every task, as an engine must
    python luigi_dag.py last FOLDER STEPS NAMES REPORT     ask for the last task alone; if that is
                                                           done, Luigi looks at no other
    python luigi_dag.py process FOLDER STEPS NAMES REPORT  as all, and each task starts a process
    python luigi_dag.py fill FOLDER STEPS NAMES REPORT     write all outputs

A task is done when its output exists: Luigi does not track settings, code or content.
"""

import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import luigi
from measuring import Phases
from work import Node, shape, write_value

COMMAND = "import sys, pathlib, work; work.write_value(pathlib.Path(sys.argv[1]), int(sys.argv[2]))"


class NodeTask(luigi.Task):
    """One node of the DAG, with as many settings as a small step has."""

    dag: ClassVar[list[Node]]

    folder: luigi.Parameter[str] = luigi.Parameter()
    index: luigi.Parameter[int] = luigi.IntParameter()
    rate: luigi.Parameter[float] = luigi.FloatParameter(default=1e-3)
    rounds: luigi.Parameter[int] = luigi.IntParameter(default=3)
    kind: luigi.Parameter[str] = luigi.Parameter(default="cosine")
    in_process: luigi.Parameter[bool] = luigi.BoolParameter(default=True, significant=False)

    @property
    def node(self) -> Node:
        return self.dag[self.index]

    def requires(self) -> list["NodeTask"]:
        return [self.clone(index=index) for index in self.node.inputs]

    def output(self) -> luigi.LocalTarget:  # pyright: ignore[reportIncompatibleMethodOverride]
        return luigi.LocalTarget(f"{self.folder}/{self.node.stage}/{self.node.lane}.json")

    def run(self) -> None:
        with self.output().temporary_path() as path:
            if self.in_process:
                write_value(Path(path), self.node.lane)
            else:
                command = [sys.executable, "-c", COMMAND, path, str(self.node.lane)]
                subprocess.run(command, cwd=Path(__file__).parent, check=True)


def main(mode: str, folder: str, steps: str, names: str, report: str) -> None:
    phases = Phases()
    with phases.phase("dag"):
        NodeTask.dag = shape(int(steps), int(names))
        tasks = [
            NodeTask(folder=folder, index=index, in_process=mode != "process")
            for index in range(len(NodeTask.dag))
        ]
    if mode == "fill":
        for task in tasks:
            task.output().makedirs()
            write_value(Path(task.output().path), task.node.lane)
        return
    with phases.phase("run"):
        wanted = tasks[-1:] if mode == "last" else tasks
        done = luigi.build(wanted, local_scheduler=True, log_level="WARNING")
    assert done
    phases.write(report)


if __name__ == "__main__":
    main(*sys.argv[1:])
