"""``main``: an experiment script's entry point, configured by Hydra.

An experiment is a function from a config dataclass to named steps:

    @dataclass
    class Config(ExperimentConfig):
        data: PreferenceData = field(default_factory=PreferenceData)

    def my_experiment(cfg: Config) -> dict[str, Step]: ...

    if __name__ == "__main__":
        main(my_experiment)

The dataclass is the schema, so unknown keys and wrong types are refused before anything runs. No
YAML is needed; ``conf/my_experiment.yaml`` beside the script, or in a folder above it, may set
other values, or hold a defaults list of groups. The command line has Hydra's own syntax
(``dpo.loss.beta=0.05``, ``scale=full``, ``-m dpo.loss.beta=0.05,0.1``, ``--cfg job``). ``--help``
explains every setting. ``--plan`` shows what would run and why, and runs nothing.

A field may accept several dataclasses. ``choices`` names them for the command line, where they form
a group: ``dpo/loss=ipo dpo.loss.beta=0.2``.

    main(my_experiment, choices={"dpo.loss": {"dpo": Dpo, "ipo": Ipo}})

Without a choice, the field has the value from the dataclass; so it has if its own type is chosen by
name. If another type is chosen, it has the defaults of that type.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, fields
from inspect import iscoroutinefunction, isgeneratorfunction, signature
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, get_type_hints

import hydra
import yaml
from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from pipeline.base.errors import Stopped, TemperError
from pipeline.base.redaction import without_secrets
from pipeline.base.text import counted
from pipeline.configs.demo_rows import refuse_mixed_rows
from pipeline.configs.field_types import as_text, of_parts_in_use
from pipeline.configs.groups import Choices, choose_config, refuse_missing_options, with_own
from pipeline.configs.schemas import store_schema, to_dataclass
from pipeline.dag.step import Step, look_again
from pipeline.launchers.config import LauncherConfig
from pipeline.plan.expected import require_expected
from pipeline.plan.planning import State, make_plan
from pipeline.plan.variants import typed_apart
from pipeline.running.budget import require_within, seconds_of
from pipeline.running.run_request import built, chosen, refuse_in_worker, require_packages
from pipeline.running.session import note_plan, run
from pipeline.running.sweep import Job, in_one_run, refuse_faults
from pipeline.show.artifact_handle import Made
from pipeline.show.sinks import require_known, require_sinks
from pipeline.show.terminal import (
    make_console,
    show_error,
    show_plan,
    show_title,
)
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store
from pipeline.store.runs import experiment_of
from pipeline.tuning.driver import TUNING, first_trials, search
from pipeline.tuning.goal import Options
from pipeline.tuning.space import parsed, some_values
from pipeline.uncaught.early import STOPPED

if TYPE_CHECKING:  # imported late: few calls are wrong
    from hydra.conf import HydraConf

    from pipeline.configs.suggestions import Known

# Hydra only composes configs: no output folders, no logging set-up, no change of directory.
_HYDRA_QUIET = (
    "hydra.run.dir=.",
    "hydra.output_subdir=null",
    "hydra.job.chdir=false",
    "hydra/hydra_logging=disabled",
    "hydra/job_logging=disabled",
    # else it would silence the loggers of all libraries that are imported by then
    "hydra.hydra_logging.disable_existing_loggers=false",
    "hydra.job_logging.disable_existing_loggers=false",
    f"hydra.sweep.dir={tempfile.gettempdir()}/temper-multirun-{os.getuid()}",
)

_NO_CONFIGS = "pipeline.configs"
"""A package without configs."""
# What a single job does without: Hydra would read a YAML file for each.
_HYDRA_UNUSED = tuple(
    f"hydra/{group}=[]"
    for group in ("help", "hydra_help", "hydra_logging", "job_logging", "output")
)

_VERBOSITY = {"-q": -1, "--quiet": -1, "-v": 1, "--verbose": 1}


@dataclass
class ExperimentConfig:
    """The settings that every experiment has.

    Args:
        store: the store of artifacts: a local path or an fsspec URL.
        jobs: how many steps may run at once on this machine.
        force: names of steps to run again although they are cached: ``force=[train_dpo@KEY]``.
        only: names of steps to make instead of all results, as in ``only=[train_dpo@KEY]``.
        scheduler: URL of a ``luigid`` that several drivers share.
        launcher: where steps run, and which resources they request; a group of its own.
        sinks: further displays of metrics, as in ``sinks=[wandb,tensorboard]``.
        budget: the most time, as in ``budget=2h``: a longer plan is refused, a longer run stops.
    """

    store: str = "${oc.env:TEMPER_STORE,store}"
    jobs: int = 1
    force: list[str] = field(default_factory=list)
    only: list[str] = field(default_factory=list)
    scheduler: str | None = None
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    sinks: list[str] = field(default_factory=list)
    budget: str | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {self.jobs}")
        if self.budget is not None:
            seconds_of(self.budget)


class Called(NamedTuple):
    """How an experiment was called: the words of the command, without its arguments, the file that
    holds its settings, if there is one, and the arguments, if they were not those of the script."""

    words: Sequence[str]
    file: str = ""
    typed: Sequence[str] = ()

    def placed(self, message: str) -> str:
        """The message about some setting, with the file that may hold it."""
        return f"{message} (with the settings of {self.file})" if self.file else message


CALLED: list[Called] = []
"""The call of the experiment, if it was not ``python SCRIPT``."""
_OF_HYDRA = (HydraException, OmegaConfBaseException)
_REFUSALS = (*_OF_HYDRA, yaml.YAMLError, ValueError, RecursionError, AssertionError, AttributeError)
"""What Hydra raises while it composes a config."""


def main(build: Callable[[Any], Mapping[str, Step]], choices: Choices | None = None) -> None:
    """Compose the config from YAML and the command line, plan, run, show the results.

    If a foreseen problem occurs, it prints one line on standard error and exits with status 3 if a
    step failed, else 1; after Ctrl-C or a signal, with 128 and its number.

    Args:
        choices: the types of fields, see the module docstring; a group of the same name in
            ``conf/`` adds more options.
    """
    refuse_in_worker("main")
    call = _Call(build, choices or {})
    try:
        call.go()
        if call.failure:
            _fail(call.failure, call.status)
    except TemperError as error:
        _fail(str(error), error.status)
    except _REFUSALS as error:
        if call.has_begun and not isinstance(error, _OF_HYDRA):
            raise
        _fail(call.explain(error))
    except KeyboardInterrupt as error:
        with contextlib.suppress(OSError):  # a terminal that has closed
            print(STOPPED, file=sys.stderr)
        sys.exit(128 + (error.args[0] if isinstance(error, Stopped) else signal.SIGINT))


class _Call:
    """One call of an experiment, with the words on the command line.

    Attributes:
        called: how the experiment was called.
        asked: the topic of ``--help``; ``None`` without it.
        settings: the arguments, without Temper's own options and ``--help``.
        failure: the message of a failure.
        jobs: the jobs of a sweep, which run together.
        has_begun: whether a config has been composed, so that an error is one of the experiment's.
    """

    def __init__(self, build: Callable[[Any], Mapping[str, Step]], choices: Choices):
        sys.argv = _in_full(sys.argv)
        choices = with_own(choices, sys.argv[1:])
        self.build, self.choices, self.schema = build, choices, _schema_of(build)
        self.plan_only, self.as_json = "--plan" in sys.argv, "--json" in sys.argv
        self.called = CALLED[0] if CALLED else Called([sys.orig_argv[0], sys.argv[0]])
        self.loud = [argument for argument in sys.argv[1:] if argument in _VERBOSITY]
        self.asked, arguments = _without_help(sys.argv)
        typed = of_parts_in_use([as_text(a, self.schema, choices) for a in arguments[1:]])
        sys.argv = _hydra_arguments([arguments[0], *typed])
        self.settings = [a for a in sys.argv[1:] if a not in _HYDRA_QUIET]
        self.failure = ""
        self.jobs: list[Job] = []
        self.status = 1
        self.has_begun = False
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises errors, which we print as one line
        store_schema(self.schema, choices)
        script = Path(build.__code__.co_filename)
        self.folder, self.name = choose_config(script, self.schema, choices)

    def go(self) -> None:
        """Run the study or the jobs that the command line asks for."""
        look_again()  # a process that calls main() once more sees the present files
        if (study := os.environ.pop(TUNING, None)) is not None:
            _tune(self, json.loads(study))
            return
        if not all(map(_is_override, self.settings)):
            from pipeline.configs.suggestions import refuse_options

            refuse_options(self.settings, self.known)
        if len({_VERBOSITY[word] for word in self.loud}) > 1:
            raise TemperError(f"{' and '.join(self.loud)} contradict each other; leave one out")
        # without a folder, Hydra would take the folders beside this module for groups, as store/
        folder = str(self.folder) if self.folder else f"pkg://{_NO_CONFIGS}"

        @hydra.main(version_base="1.3", config_path=folder, config_name=self.name)
        def job(cfg: DictConfig) -> None:
            self.job(cfg)

        job(_composed(sys.argv[1:], self.folder, self.name))
        if not self.has_begun and set(self.settings) - {*self._overrides()} <= {"-m", "--multirun"}:
            raise TemperError(
                f"-m: {' '.join(self._overrides())} stands for no job, because one of these "
                "settings has no value; look at its range() or glob()"
            )
        if self.jobs:
            self._run_jobs()

    def _overrides(self) -> list[str]:
        return [*filter(_is_override, self.settings)]

    def job(self, cfg: DictConfig) -> None:
        """Run, plan or explain the experiment with one config, or collect it as a job of a sweep;
        keep the message of a failure."""
        if self.has_begun and self.asked is not None:
            return  # all jobs of a sweep have the same settings to explain
        self.has_begun = True
        config, roots, fault = None, {}, ""
        is_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
        try:
            if self.asked is not None:
                from pipeline.configs.help_page import Experiment, show_help

                words = [*self.called.words]
                about = Experiment(self.build, self.choices, self.folder, cfg, words)
                show_help(about, self.asked)
                return
            config = _checked(cfg, HydraConfig.get(), self.folder)
            roots = built(self.build, config)
            if not is_sweep:
                self._run(roots, config, _title(self.called, [config]))
        except TemperError as error:  # Hydra would print it a second time
            fault = str(error) if config else self.called.placed(str(error))
            self.status = error.status
        except OmegaConfBaseException as error:
            fault = self.explain(error)
        if is_sweep:
            self.jobs.append(Job(_typed(HydraConfig.get()), config, roots, fault))
        elif fault:
            self.failure = fault

    def _run_jobs(self) -> None:
        """Run or plan the steps of all jobs of a sweep together.

        Raises:
            TemperError: a job is wrong, or they do not agree about how and where steps run.
        """
        refuse_faults(self.jobs)
        configs = [job.config for job in self.jobs]
        for ours in fields(ExperimentConfig):
            if any(getattr(c, ours.name) != getattr(configs[0], ours.name) for c in configs):
                raise TemperError(
                    f"-m: all jobs are one run, which has one value of {ours.name}; give one"
                )
        swept = ", ".join(typed_apart([job.typed for job in self.jobs])[0])
        title = _title(self.called, configs) or experiment_of(self.called.words)
        title += f"; {counted(len(configs), 'job')}{f' by {swept}' if swept else ''}"
        self._run(in_one_run(self.jobs), configs[0], title)

    def _run(self, roots: Mapping[str, Step], config: ExperimentConfig, title: str) -> None:
        if self.plan_only:
            _show_plan(roots, config, title, self.as_json)
            return
        made = run(
            roots,
            config.store,
            config.jobs,
            make_console(stderr=self.as_json),
            force=config.force,
            scheduler=config.scheduler,
            launcher=config.launcher,
            only=config.only,
            sinks=config.sinks,
            budget=config.budget,
            verbosity=sum(_VERBOSITY[word] for word in self.loud),
            again=self._command_for,
            title=title,
        )
        if self.as_json:
            _print_results(made)

    def _command_for(self, step: str) -> str:
        """The command that makes only one step."""
        typed = self.called.typed or self.settings
        settings = [word for word in typed if not word.startswith("only=")]
        return shlex.join([*self.called.words, *without_secrets(settings), f"only=[{step}]"])

    def known(self) -> "Known":
        """The settings and choices of the experiment."""
        from pipeline.configs.suggestions import Known

        return Known.of(self.schema, self.choices, self.settings)

    def explain(self, error: Exception) -> str:
        """The message for an error of Hydra or OmegaConf."""
        from pipeline.configs.suggestions import config_error, unknown_settings

        if len(unknown := self._unknown_settings(error)) > 1:
            return self.called.placed(unknown_settings(unknown, self.known(), self.settings))
        said = config_error(error, self.known(), self.settings)
        if isinstance(error, yaml.YAMLError | UnicodeDecodeError | RecursionError):
            said += f" (in {self.folder})"
        return self.called.placed(said)

    def _unknown_settings(self, error: Exception) -> list[str]:
        """The settings that Hydra does not know: it names one, so the others are composed again."""
        from pipeline.configs.suggestions import unknown_of

        found: list[str] = []
        left = self._overrides()
        while (key := unknown_of(error)) and key not in found:
            found.append(key)
            left = [o for o in left if o.lstrip("+~").partition("=")[0] != key]
            try:
                with _initialized(self.folder):
                    compose(self.name, [*left, *_HYDRA_UNUSED])
            except Exception as further:
                error = further
            else:
                break
        return found


def _schema_of(build: Callable[[Any], Any]) -> type:
    """The config that the function of an experiment takes.

    Raises:
        TemperError: it is no function with such a parameter.
    """
    try:
        hints = get_type_hints(build) if isinstance(build, FunctionType) else {}
    except NameError as error:
        raise TemperError(f"an annotation of {build.__name__} is wrong: {error}") from error
    schema = next((kind for name, kind in hints.items() if name != "return"), None)
    if not isinstance(schema, type) or not issubclass(schema, ExperimentConfig):
        raise TemperError(
            "main() takes the function of an experiment, uncalled, whose parameter is its config: "
            "def NAME(cfg: Config) -> dict[str, Step], with class Config(ExperimentConfig)"
        )
    if isgeneratorfunction(build) or iscoroutinefunction(build):
        raise TemperError(f"{build.__name__} is a plain function: it returns a dict of steps")
    needed = [p for p in signature(build).parameters.values() if p.default is p.empty]
    if len(needed) > 1:
        raise TemperError(
            f"{build.__name__} takes {', '.join(p.name for p in needed)}: an experiment's function "
            "takes its config alone; put the others into the config, as its settings"
        )
    if "__dataclass_fields__" not in vars(schema):
        raise TemperError(f"the config {schema.__name__} is no dataclass: put @dataclass above it")
    return schema


def _composed(
    arguments: list[str],
    folder: Path | None,
    name: str,
    unused: Sequence[str] = _HYDRA_UNUSED,
) -> DictConfig | None:
    """The config of a single job; ``None`` if the arguments need ``hydra.main``: for a sweep, or to
    report that they look like one.

    ``hydra.main`` composes everything twice, the first time to detect a sweep. What is wrong with
    the arguments otherwise is raised here as Hydra raises it.

    Args:
        unused: overrides that leave groups of Hydra out, unless the config mentions them.
    """
    overrides = [argument for argument in arguments if argument not in _HYDRA_QUIET]
    if not all(_is_override(o) and "hydra" not in o.partition("=")[0] for o in overrides):
        return None
    primary = folder and folder / f"{name}.yaml"  # only its defaults list can override Hydra's
    if primary and primary.is_file() and "hydra/" in primary.read_text("utf-8", errors="replace"):
        unused = ()
    try:
        with _initialized(folder):
            cfg = compose(name, [*overrides, *unused], return_hydra_config=True)
        if cfg.hydra.mode == RunMode.MULTIRUN or cfg.hydra.callbacks or cfg.hydra.job.env_set:
            return None
    except Exception:  # of many kinds
        if any("," in override or "(" in override for override in overrides):
            return None
        raise
    with read_write(cfg), open_dict(cfg):
        cfg.hydra.runtime.output_dir = os.getcwd()
        # a setting of Hydra's may refer to another: where any is wanted, they stay together
        HydraConfig.instance().set_config(cfg if unused else deepcopy(cfg))
        del cfg["hydra"]
    if unused and "hydra:" in str(OmegaConf.to_container(cfg)):  # a setting may refer to them
        return _composed(arguments, folder, name, unused=())
    return cfg


def _checked(cfg: DictConfig, of_hydra: "DictConfig | HydraConf", folder: Path | None) -> Any:
    """A composed config as the experiment's dataclass.

    Args:
        of_hydra: what Hydra says of its composition.
        folder: the folder of the experiment's config.

    Raises:
        TemperError: an option does not exist, a setting is wrong, or rows would be mixed.
    """
    options, typed = of_hydra.runtime.choices, _typed(of_hydra)
    if not of_hydra.searchpath:  # folders of the user's own
        with _searching(folder):
            refuse_missing_options(typed, options)
    refuse_mixed_rows(cfg, options, folder, typed)
    return to_dataclass(cfg)


def _title(called: Called, configs: Sequence[ExperimentConfig]) -> str:
    """The experiment with the titles of the parts of its configs, as of the model and the data."""
    told = []
    for part in fields(configs[0]):
        values = [getattr(config, part.name) for config in configs]
        titles = dict.fromkeys(value.title for value in values if _has_title(value))
        told += [f"{part.name} {' and '.join(titles)}"] if titles else []
    return f"{experiment_of(called.words)}: {', '.join(told)}" if told else ""


def _has_title(part: Any) -> bool:
    return isinstance(getattr(type(part), "title", None), property)


def _print_results(made: Mapping[str, Made]) -> None:
    from pipeline.show.json_values import of_results, print_json

    catalog = Catalog(next(iter(made.values())).store)
    print_json("run", of_results(catalog, {name: one.manifest for name, one in made.items()}))


def _show_plan(
    roots: Mapping[str, Step], config: ExperimentConfig, title: str = "", as_json: bool = False
) -> None:
    from pipeline.launchers.placement import requests, require_processes
    from pipeline.running.forecast import estimates_of  # a complete plan does not need it

    require_known(config.sinks)
    catalog = Catalog(Store(config.store))
    expecting = roots.values()
    if config.only:
        roots = chosen(make_plan(roots, catalog.store, (), catalog), config.only)
    plan = make_plan(roots, catalog.store, config.force, catalog)
    estimates = estimates_of(plan, catalog, config.launcher, config.jobs)
    if as_json:
        from pipeline.show.json_values import of_plan, print_json

        print_json("plan", of_plan(plan, estimates, title, config.jobs))
    else:
        show_title(make_console(), title)
        show_plan(make_console(), plan, estimates=estimates, jobs=config.jobs)
    note_plan()
    require_within(config.budget, plan, estimates, config.jobs)
    require_expected(plan, catalog, expecting)
    require_sinks(config.sinks)
    require_packages(plan, config.launcher)
    asked = requests(roots.values(), config.launcher.requests())
    for planned in plan.in_state(State.RUN, State.BLOCKED):
        require_processes(planned.step, asked[planned.step.fingerprint])


def _initialized(folder: Path | None) -> AbstractContextManager[Any]:
    if folder is None:
        # no folder is searched either way; `initialize` would read the source of its whole stack
        return initialize_config_module(_NO_CONFIGS, version_base="1.3")
    return initialize_config_dir(str(folder), version_base="1.3")


def _searching(folder: Path | None) -> AbstractContextManager[Any]:
    """Within it, Hydra finds options."""
    return nullcontext() if GlobalHydra.instance().is_initialized() else _initialized(folder)


def _typed(of_hydra: "DictConfig | HydraConf") -> list[str]:
    """The settings that a config was composed with, as typed: a reference in them, as in
    ``rl.seed=${seed}``, is one to a setting of the experiment, and not to one of Hydra's."""
    typed: Any = OmegaConf.to_container(of_hydra.overrides.task, resolve=False)
    return [*map(str, typed)]


def _in_full(arguments: list[str]) -> list[str]:
    """The arguments with ``--dry`` as ``--plan``, and ``--budget 2h`` as the setting."""
    found: list[str] = []
    for word in arguments:
        if found and found[-1] == "--budget":
            found[-1] = f"budget={word}"
        else:
            found.append("--plan" if word == "--dry" else re.sub("^--budget=", "budget=", word))
    if found[-1] == "--budget":
        raise TemperError("--budget needs a value, as in --budget 2h")
    return found


def _without_help(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The topic of ``--help`` (an empty text for all), and the other arguments."""
    asked = next((n for n, a in enumerate(arguments) if a in ("--help", "-h")), None)
    if asked is None:
        return None, arguments
    after = arguments[asked + 1 : asked + 2]
    about = after[0] if after and not after[0].startswith("-") and "=" not in after[0] else ""
    return about, [*arguments[:asked], *arguments[asked + 1 + bool(about) :]]


def _tune(call: _Call, asked: dict[str, Any]) -> None:
    """Run a study over the settings on the command line; see :mod:`pipeline.tuning`."""
    # `temper tune` has become this process; runs record the command that was typed
    sys.orig_argv = asked.pop("command", sys.orig_argv)
    is_plan = asked.pop("plan", False)
    space, fixed = parsed(call.settings)
    with ExitStack() as stack:
        folder = call.folder

        def composed(overrides: list[str]) -> DictConfig:
            with _initialized(folder):
                return compose(call.name, [*overrides, *_HYDRA_UNUSED], return_hydra_config=True)

        def configured(values: Mapping[str, Any]) -> Any:
            cfg = composed([*fixed, *(f"{path}={value}" for path, value in values.items())])
            of_hydra = cfg.hydra
            with read_write(cfg), open_dict(cfg):
                del cfg["hydra"]
            return _checked(cfg, of_hydra, folder)

        config = configured({})
        _refuse_unused(space, config)
        for path, axis in space.items():  # a value that does not exist is found before a trial runs
            for value in some_values(axis):
                composed([*fixed, f"{path}={value}"])
        call.has_begun = True
        if call.folder is not None:  # trials have the same config, whoever edits it meanwhile
            folder = stack.enter_context(_copied(call.folder))

        def configure(values: Mapping[str, Any]) -> Mapping[str, Step]:
            try:
                return built(call.build, configured(values))
            except (HydraException, OmegaConfBaseException) as error:
                raise TemperError(call.explain(error)) from None

        options, store = Options(**asked), Store(config.store)
        if is_plan:
            _show_first_trials(*first_trials(configure, space, options, store), config)
            return
        tuned = search(
            configure,
            space,
            options,
            store,
            jobs=config.jobs,
            launcher=config.launcher,
            sinks=config.sinks,
        )
    make_console().print(tuned)


def _show_first_trials(trials: Mapping[str, Step], count: int, config: ExperimentConfig) -> None:
    """Show what a study would run first."""
    _show_plan(trials, config)
    first = "all trials" if len(trials) == count else f"the first {len(trials)} of {count} trials"
    make_console().print(f"a plan of {first}; nothing has run", highlight=False)


def _refuse_unused(space: Iterable[str], config: ExperimentConfig) -> None:
    """
    Raises:
        TemperError: a setting cannot vary, or has no meaning in a study.
    """
    ours = {field.name for field in fields(ExperimentConfig)}
    for path in space:
        if re.split("[./]", path.lstrip("+"))[0] in ours:
            raise TemperError(f"tune: {path} changes no result, so it cannot vary; give one value")
    for name in ("force", "only", "scheduler", "budget"):
        if getattr(config, name):
            raise TemperError(f"tune: a study has no use for {name}; leave it out")


@contextlib.contextmanager
def _copied(folder: Path) -> Iterator[Path]:
    """A copy of the YAML files of a folder, and of the folders that links in it lead to, as Hydra
    reads them; but not of a folder within itself."""
    with tempfile.TemporaryDirectory(prefix="temper-conf-") as place:
        for parent, inner, names in os.walk(folder, followlinks=True):
            real = os.path.realpath(parent)
            inner[:] = [name for name in inner if not _leads_back(os.path.join(parent, name), real)]
            (copy := Path(place, os.path.relpath(parent, folder))).mkdir(exist_ok=True)
            for name in names:
                if name.endswith(".yaml"):
                    with contextlib.suppress(OSError):  # one that cannot be read is of no config
                        (copy / name).write_bytes(Path(parent, name).read_bytes())
        yield Path(place)


def _leads_back(path: str, parent: str) -> bool:
    """Whether a folder is a link to one that holds it."""
    return Path(parent).is_relative_to(os.path.realpath(path))


def _hydra_arguments(arguments: list[str]) -> list[str]:
    """The command line for Hydra: without our own options, with Hydra's side effects off, and with
    options first, because Hydra does not accept them between overrides."""
    ours = ("--plan", "--json", *_VERBOSITY)
    script, *rest = [argument for argument in arguments if argument not in ours]
    overrides = list(filter(_is_override, rest))
    options = (a for a in rest if a not in overrides)
    return [script, *options, *map(_with_letters, overrides), *_HYDRA_QUIET]


def _with_letters(override: str) -> str:
    """The override with its value in quotes where that has letters beyond ASCII, as a path may:
    Hydra's grammar has none outside quotes."""
    key, _, value = override.partition("=")
    is_text = not value.isascii() and re.fullmatch(r"[\w ./@+:-]+", value)
    return f"{key}='{value}'" if is_text else override


def _is_override(argument: str) -> bool:
    return not argument.startswith("-") and ("=" in argument or argument.startswith("~"))


def _fail(message: str, status: int = 1) -> NoReturn:
    show_error(message)
    sys.exit(status)
