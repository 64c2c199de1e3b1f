"""``temper tune``: replaces this process by an experiment script that runs a study."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pipeline.base.errors import TemperError
from pipeline.cli.recipes import words_for
from pipeline.tuning.driver import TUNING
from pipeline.tuning.goal import Options


def tune(
    context: typer.Context,
    script: Annotated[
        Path,
        typer.Argument(metavar="SCRIPT [SETTINGS]...", help="An experiment's script or module."),
    ],
    metric: Annotated[
        str, typer.Option(metavar="RESULT.METRIC[:min|:max]", help="The metric to optimise.")
    ],
    trials: Annotated[int, typer.Option(help="The largest number of trials.")],
    sampler: Annotated[str, typer.Option(help="tpe, random or grid.")] = "tpe",
    seed: Annotated[int, typer.Option(help="The same seed gives the same trials.")] = 0,
    batch: Annotated[
        int | None,
        typer.Option(help="Trials to choose at once; by default 4 for tpe and median, or all."),
    ] = None,
    stop_on: Annotated[
        str | None,
        typer.Option(metavar="STEP.METRIC", help="Stop trials early by this held-out metric."),
    ] = None,
    rungs: Annotated[
        str,
        typer.Option(
            metavar="N,N", help="Numbers of updates of that step after which trials are compared."
        ),
    ] = "",
    reduction: Annotated[int, typer.Option(help="At each rung, one in so many goes on.")] = 2,
    pruner: Annotated[str, typer.Option(help="halving, hyperband or median.")] = "halving",
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what the first trials would run; run nothing.")
    ] = False,
) -> None:
    """Search for the settings that optimise a metric of a result.

    SETTINGS are settings of the script. A setting with several values or an interval is searched:
    dpo.loss.beta=0.1,0.3, 'dpo.loss.beta=interval(0.1,1.0)' or 'lr=tag(log,interval(1e-5,1e-3))'.
    Trials are ordinary cached runs: the same command continues an interrupted study.
    """
    words = words_for(script)
    if flags := [argument for argument in context.args if argument.startswith("-")]:
        raise TemperError(f"temper tune has no {flags[0]}; its settings are written NAME=VALUE")
    at = tuple(map(_count, filter(None, rungs.split(","))))
    options = Options(metric, trials, sampler, seed, batch, stop_on, at, reduction, pruner)
    command = [sys.executable, *words, *context.args]
    study = {**asdict(options), "command": sys.orig_argv, "plan": plan}
    environment = {**os.environ, TUNING: json.dumps(study)}
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)  # so signals reach the script itself


def _count(text: str) -> int:
    if not text.strip().isdigit():
        raise TemperError(f"--rungs: {text!r} is no number of updates; give them as in 10,20")
    return int(text)
