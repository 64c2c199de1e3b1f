"""``main``: an experiment script's entry point, configured by Hydra.

An experiment is a function from a config dataclass to named steps:

    @dataclass
    class Config(ExperimentConfig):
        data: PreferenceData = field(default_factory=PreferenceData)

    def my_experiment(cfg: Config) -> dict[str, Step]: ...

    if __name__ == "__main__":
        main(my_experiment)

``conf/my_experiment.yaml`` names the groups it is made of; the dataclass is the schema, so unknown
keys and wrong types are refused before anything runs. On the command line Hydra's own syntax works
(``dpo.loss.beta=0.05``, ``scale=full``, ``-m dpo.loss.beta=0.05,0.1``, ``--cfg job``,
``--help``), and ``--plan`` shows what would run and why, and runs nothing.

A field may be one of several dataclasses. ``main`` is told which, by the names they get on the
command line, where they are a group: ``dpo/loss=ipo dpo.loss.beta=0.2``.

    main(my_experiment, choices={"dpo.loss": {"dpo": Dpo, "ipo": Ipo}})

Without a choice the field is what the dataclass makes of it; choosing its type by name gives that
too, and of another type the defaults of that.
"""

import difflib
import itertools
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.board import make_console, show_error, show_plan
from pipeline.errors import Stopped, TemperError
from pipeline.launchers.config import LauncherConfig
from pipeline.plan import make_plan
from pipeline.record import without_secrets
from pipeline.run import run
from pipeline.step import Step, look_again
from pipeline.store import Store

# Hydra is here to compose configs: no output folders, no logging set-up, no change of directory.
_HYDRA_QUIET = (
    "hydra.run.dir=.",
    "hydra.output_subdir=null",
    "hydra.job.chdir=false",
    "hydra/hydra_logging=disabled",
    "hydra/job_logging=disabled",
    f"hydra.sweep.dir={tempfile.gettempdir()}/temper-multirun-{os.getuid()}",
)

_VERBOSITY = {"-q": -1, "--quiet": -1, "-v": 1, "--verbose": 1}


@dataclass
class ExperimentConfig:
    """What every experiment can be told, besides what its steps are.

    Args:
        store: where artifacts lie: a local path or an fsspec URL.
        jobs: how many steps may run at once on this machine.
        force: names of steps to run again although they are cached, as in ``force=[train_dpo]``.
        only: names of steps to make instead of all results, as in ``only=[train_dpo@KEY]``.
        scheduler: URL of a ``luigid`` that several drivers share.
        launcher: where steps run, and what they ask for; a group of its own.
        sinks: where else to show metrics, as in ``sinks=[wandb,tensorboard]``.
    """

    store: str = "${oc.env:TEMPER_STORE,store}"
    jobs: int = 1
    force: list[str] = field(default_factory=list)
    only: list[str] = field(default_factory=list)
    scheduler: str | None = None
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    sinks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {self.jobs}")


Choices = Mapping[str, Mapping[str, type]]
"""The types that a field may be of, by name, for the path of each such field."""


def main(build: Callable[[Any], Mapping[str, Step]], choices: Choices | None = None) -> None:
    """Compose the config from ``conf/`` and the command line, plan, run, show the results.

    Exits with status 1 and one line on standard error for anything foreseen that goes wrong.

    Args:
        choices: see the module; a group in ``conf/`` of the same name has more of them.
    """
    script = Path(build.__code__.co_filename)
    schema = next(iter(get_type_hints(build).values()))
    plan_only = "--plan" in sys.argv
    verbosity = sum(_VERBOSITY.get(argument, 0) for argument in sys.argv[1:])
    typed = [sys.orig_argv[0], sys.argv[0]]
    sys.argv = _hydra_arguments(sys.argv)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors reach us: we say them in one line
    _store_schema(schema, choices or {})

    started: list[bool] = []
    failures: list[str] = []

    @hydra.main(version_base="1.3", config_path=str(_conf_folder(script)), config_name=script.stem)
    def job(cfg: DictConfig) -> None:
        started.append(True)
        look_again()  # each job of a sweep sees the files as they are
        try:
            config = _to_dataclass(cfg)
            roots = build(config)
            if plan_only:
                show_plan(make_console(), make_plan(roots, Store(config.store), config.force))
            else:
                run(
                    roots,
                    config.store,
                    config.jobs,
                    force=config.force,
                    scheduler=config.scheduler,
                    launcher=config.launcher,
                    only=config.only,
                    sinks=config.sinks,
                    verbosity=verbosity,
                    again=lambda step: _command_for(typed, step),
                )
        except TemperError as error:  # kept from Hydra, which would announce it twice
            failures.append(str(error))
        except OmegaConfBaseException as error:
            failures.append(_config_error(error, schema))

    try:
        job()
        if failures:
            _fail("; ".join(failures))
    except (HydraException, OmegaConfBaseException) as error:
        _fail(_config_error(error, schema))
    except ValueError as error:
        if started:
            raise
        _fail(f"the configuration cannot be composed: {error}")
    except (AssertionError, AttributeError):
        if started or not (fault := _set_within_null(sys.argv, schema)):
            raise
        _fail(fault)
    except KeyboardInterrupt as error:
        print("stopped; run the same command again to go on", file=sys.stderr)
        sys.exit(143 if isinstance(error, Stopped) else 130)


def _command_for(typed: list[str], step: str) -> str:
    """What to type to make one step alone, with the settings of this job."""
    settings = [o for o in HydraConfig.get().overrides.task if not o.startswith("only=")]
    return shlex.join([*typed, *without_secrets(settings), f"only=[{step}]"])


def _hydra_arguments(arguments: list[str]) -> list[str]:
    """The command line without our own flags, with Hydra's side effects off, and with flags first,
    because Hydra does not understand them between overrides."""
    ours = ("--plan", *_VERBOSITY)
    script, *rest = [argument for argument in arguments if argument not in ours]
    overrides = [a for a in rest if not a.startswith("-") and ("=" in a or a.startswith("~"))]
    return [script, *(a for a in rest if a not in overrides), *overrides, *_HYDRA_QUIET]


def _to_dataclass(cfg: DictConfig) -> Any:
    try:
        return OmegaConf.to_object(cfg)
    except ValueError as error:  # a config dataclass refused its values
        where = _refused_at(cfg)
        raise TemperError(f"invalid configuration{where and f' in {where}'}: {error}") from error


def _refused_at(cfg: DictConfig, prefix: str = "") -> str:
    """The dotted name of the innermost part of a config that is no valid object by itself."""
    for key in cfg:
        node, name = cfg._get_node(key), f"{prefix}{key}"
        if isinstance(node, DictConfig) and not node._is_none() and not node._is_missing():
            try:
                OmegaConf.to_object(node)
            except ValueError:
                return _refused_at(node, f"{name}.") or name
    return ""


def _conf_folder(script: Path) -> Path:
    for parent in script.resolve().parents:
        if (parent / "conf" / f"{script.stem}.yaml").is_file():
            return parent / "conf"
    _fail(f"no conf/{script.stem}.yaml beside {script} or in a folder above it")


def _store_schema(schema: type, choices: Choices) -> None:
    """Make ``schema`` known to Hydra, and a group of each field that has a choice of types.

    Such a field is left open in the schema: Hydra merges, and a dataclass merged into another would
    keep fields of both. What it was is the option that the group has by default.
    """
    store = ConfigStore.instance().store
    config = _writable_schema(schema)
    defaults: list[Any] = []
    for path, types in choices.items():
        group, node = path.replace(".", "/"), OmegaConf.select(config, path)
        default = None if node is None else OmegaConf.to_object(node)
        chosen = next((name for name, kind in types.items() if type(default) is kind), None)
        for option, kind in types.items():
            schema_or_value = default if option == chosen else kind
            store(group=group, name=option, node=_writable_schema(schema_or_value))
        if default is not None:
            OmegaConf.update(config, path, "???", merge=False)
        defaults.append({group: chosen})
    store(name="fields", node=config)
    store(name="schema", node={"defaults": ["fields", *defaults, "_self_"]})


def _writable_schema(schema: Any) -> DictConfig:
    """The dataclass, or one of its instances, as a Hydra schema.

    OmegaConf makes frozen dataclasses read-only, which is right for values and wrong for a schema
    that overrides are merged into. The keys of a mapping are the user's to choose, while those of a
    dataclass are fixed.
    """
    config = OmegaConf.structured(schema)
    for node in _nodes(config):
        OmegaConf.set_readonly(node, None)
        if OmegaConf.get_type(node) is dict:
            OmegaConf.set_struct(node, False)
    return config


def _nodes(config: DictConfig) -> Iterator[DictConfig]:
    yield config
    for key in config:
        node = config._get_node(key)
        if isinstance(node, DictConfig) and not node._is_none() and not node._is_missing():
            yield from _nodes(node)


def _config_error(error: Exception, schema: type) -> str:
    """Hydra's multi-line message as one line, with the nearest known keys for a misspelt one."""
    parts = [str(error), *([str(error.__cause__)] if error.__cause__ else [])]
    lines = [line.strip() for part in parts for line in part.splitlines() if line.strip()]
    if option := re.search(r"Could not find '(.+)/(.+)'", lines[0]):
        known = ", ".join(re.findall(r"^\t(\S+)$", str(error), re.MULTILINE))
        return f"unknown choice {option[1]}={option[2]}; known: {known}"
    if typed := re.search(r"override ([\w.]+)=(\S*); Invalid type assigned", "; ".join(lines)):
        group = typed[1].replace(".", "/")
        return f"{typed[1]} is not a value but a choice, with settings: {group}={typed[2]}"
    unknown = re.search(r"Could not override '([^']+)'", lines[0])
    key = unknown[1].split("@")[0] if unknown else ""
    known = list(_dotted_keys(OmegaConf.structured(schema)))
    if key in known and (owner := re.search(r"Key '\S+' not in '(\w+)'", str(error.__cause__))):
        return f"unknown config key {key!r}; {owner[1]}, which was chosen, has no such field"
    if key and key not in known:
        close = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
        return f"unknown config key {key!r}; {hint}"
    kept = [line for line in lines if not line.startswith(("full_key", "object_type", "reference"))]
    return "; ".join(dict.fromkeys(kept))


def _set_within_null(arguments: list[str], schema: type) -> str:
    """What Hydra fails on without a word: a key that lies within one that is null."""
    config = OmegaConf.structured(schema)
    for argument in arguments:
        key, _, value = argument.partition("=")
        *outer, _ = itertools.accumulate(f"{key}{'.' * value.startswith('{')}".split("."), _dotted)
        for name in outer:
            if OmegaConf.select(config, name, default=config) is None:
                group = name.replace(".", "/")
                return f"{name} is null, so {key} cannot be set; choose one first: {group}=NAME"
    return ""


def _dotted(outer: str, inner: str) -> str:
    return f"{outer}.{inner}"


def _dotted_keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in config:
        node = config._get_node(key)
        if isinstance(node, DictConfig) and not node._is_none() and len(node):
            yield from _dotted_keys(node, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _fail(message: str) -> NoReturn:
    show_error(message)
    sys.exit(1)
