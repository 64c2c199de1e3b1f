"""``temper tune``: this process becomes that of an experiment script, which runs a study."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pipeline.errors import TemperError
from pipeline.taken_names import require_ours
from pipeline.tuning.driver import TUNING, Options


def tune(
    context: typer.Context,
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT [SETTINGS]...", help="An experiment script.")
    ],
    metric: Annotated[
        str, typer.Option(metavar="RESULT.METRIC[:min|:max]", help="What is to be best.")
    ],
    trials: Annotated[int, typer.Option(help="How many, at most.")],
    sampler: Annotated[str, typer.Option(help="tpe, random or grid.")] = "tpe",
    seed: Annotated[int, typer.Option(help="The same seed gives the same trials.")] = 0,
    batch: Annotated[
        int | None, typer.Option(help="Trials that are chosen at once; 4 for tpe, or all.")
    ] = None,
    stop_on: Annotated[
        str | None,
        typer.Option(metavar="STEP.METRIC", help="Stop trials early by this held-out value."),
    ] = None,
    rungs: Annotated[
        str, typer.Option(metavar="N,N", help="Compare them after so many updates of that step.")
    ] = "",
    reduction: Annotated[int, typer.Option(help="One trial in so many goes on.")] = 2,
) -> None:
    """Look for the settings with which a result is best.

    SETTINGS are those of the script; one with several values varies: dpo.loss.beta=0.1,0.3,
    'dpo.loss.beta=interval(0.1,1.0)' or 'lr=tag(log,interval(1e-5,1e-3))'. Trials are ordinary
    cached runs: run the same command again, and it goes on.
    """
    if not script.is_file():
        raise TemperError(f"there is no script {script}")
    require_ours([str(script.parent), *sys.path])
    if flags := [argument for argument in context.args if argument.startswith("-")]:
        raise TemperError(f"temper tune has no {flags[0]}; its settings are written NAME=VALUE")
    at = tuple(map(_count, filter(None, rungs.split(","))))
    options = Options(metric, trials, sampler, seed, batch, stop_on, at, reduction)
    command = [sys.executable, str(script), *context.args]
    environment = {**os.environ, TUNING: json.dumps(asdict(options))}
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)  # what stops or kills us is meant for it


def _count(text: str) -> int:
    if not text.strip().isdigit():
        raise TemperError(f"--rungs: {text!r} is no number of updates; give them as in 10,20")
    return int(text)
