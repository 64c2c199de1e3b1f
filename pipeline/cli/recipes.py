"""``temper run`` and ``temper recipes``: shipped experiments, without writing Python.

A recipe is a short name for a script in ``experiments``, with the settings that select the user's
data and model; ``experiments/recipes.yaml`` lists the recipes. ``temper run`` translates its
arguments into settings of the script and runs the script in this process. So a recipe and its
script make the same steps and share cached artifacts.

A recipe can also be a YAML file. Its entries ``recipe``, ``data`` and ``model`` have the meaning of
``temper run RECIPE --data … --model …``; all other entries are settings.
"""

import difflib
import json
import os
import re
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.base.errors import TemperError
from pipeline.base.text import did_you_mean
from pipeline.configs.demo_rows import DEMO
from pipeline.configs.shipped import (
    CONF,
    EXPERIMENTS,
    names_of_options,
    read_options,
    read_recipes,
    read_yaml,
)
from pipeline.configs.yaml_files import read_settings
from pipeline.launchers.environment import require_ours
from pipeline.store.layout import PRESENT
from pipeline.store.names.recorded import named_artifact

_PLAIN = re.compile(r"[A-Za-z_./][\w./@+-]*", re.ASCII)
_QUOTE = re.compile(r"(\\*)('|$)")
"""What needs escaping inside Hydra's quotes: a quote, and backslashes before a quote or the end."""
_OF_SETTING = re.compile(r"[\w./@-]+", re.ASCII)
"""A name that can be part of a setting's. A group with other names is written in braces."""
_NAME = re.compile(r"[\w/+.$%*@?|:=,()\[\]{}\t -]+", re.ASCII)
_NO_NAME = re.compile(r"null|true|false|[+-]?(?:\.?\d[\d_.]*(?:e[+-]?[\d_]+)?|inf|nan)", re.I)
_ESCAPED_IN_NAMES = re.compile(r"^ | $|[:=,()\[\]{}\t]")
"""What needs a backslash in a name within Hydra's braces, where nothing stands in quotes."""
_HUB = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?")
_OF_FILES = (
    ".jsonl", ".json", ".txt", ".csv", ".tsv", ".parquet", ".arrow", ".gz", ".zst", ".gguf",
)  # fmt: skip
"""Suffixes that no name of the Hub has."""
_OPTIONS = ("--data", "--model")
_FLAGS = ("--plan", "--dry", "--json", "-q", "--quiet", "-v", "--verbose", "-m", "--multirun")
"""The script's options without a value."""
_SHORT = {"-d": "--data", "--dataset": "--data", "--train": "--data", "--base-model": "--model"}
_BARE = ("local", "hub", "mine")
"""Options of config groups that also need a path or name."""
_ONE_PATH = "{} takes one path; several files have a folder or a pattern: 'parts/*.jsonl'"
_OF_PATH = {"data": "data=mine", "model": "model=local"}
_OF_HUB = {"data": ["data=mine", "data.path=null"], "model": ["model=hub"]}
_MIXTURE = "data.mixture"
"""The setting whose parts have names of the user's own, so that a file says all of it at once."""


@dataclass(frozen=True)
class Recipe:
    """A shipped experiment under a short name.

    Attributes:
        about: a sentence that says what it does.
        rows: the format of a row of ``--data``; empty if the recipe makes its own data.
        own: settings that are added if the user gives data.
        settings: settings that distinguish this recipe from others of its script.
    """

    name: str
    script: str
    about: str
    rows: str = ""
    own: Sequence[str] = ()
    settings: Sequence[str] = ()

    @property
    def file(self) -> Path:
        return EXPERIMENTS / f"{self.script}.py"

    def arguments(self, data: str | None, model: str | None) -> list[str]:
        """The script's settings for the user's data and model.

        Raises:
            TemperError: the recipe makes its own data.
        """
        for option, given in (("--data", data), ("--model", model)):
            if given is not None and not self.rows:
                raise TemperError(f"the recipe {self.name} makes its own data; leave out {option}")
        found = list(self.settings)
        if data is not None:
            found += [*self.own, *_chosen("data", data)]
        return found + (_chosen("model", model) if model is not None else [])

    def implied(self, given: Mapping[str, str], asked: "Asked") -> list[str]:
        """The settings that a path or a name of the Hub needs beside it: that the rows or the model
        are the user's own, and the scale for such rows."""
        found = []
        for group in ("data", "model") if self.rows else ():
            if group in given or getattr(asked, group) is not None:
                continue
            if f"{group}.path" in given or (group == "data" and _MIXTURE in given):
                found.append(_OF_PATH[group])
            elif f"{group}.hub" in given:
                found += _OF_HUB[group]
        is_own = not given.keys().isdisjoint(("data.path", "data.hub", _MIXTURE))
        is_own = is_own or given.get("data", DEMO) != DEMO
        return [*(self.own if is_own and asked.data is None else ()), *found]


@dataclass(frozen=True)
class Asked:
    """The arguments of ``temper run``: a recipe's name or file, data, model, and the script's
    arguments."""

    recipe: str
    data: str | None = None
    model: str | None = None
    others: Sequence[str] = field(default_factory=list)


def run_recipe(words: Sequence[str]) -> None:
    """Run the recipe that the arguments of ``temper run`` name.

    Raises:
        TemperError: there is no such recipe, its file cannot be read, or an option is chosen that a
            file of this folder has.
    """
    from pipeline import experiment

    asked, settings = _asked(words), {}
    typed = [*words]
    typed.remove(asked.recipe)
    called = experiment.Called(["temper", "run", asked.recipe], typed=typed)
    if asked.recipe.endswith((".yaml", ".yml")):
        called = called._replace(file=asked.recipe)
        asked, settings = _from_file(asked)
    typed = [a.removeprefix("store=") for a in asked.others if a.startswith("store=")]
    token = PRESENT.set(typed[-1] if typed else settings.get("store"))
    try:
        recipe = find_recipe(asked.recipe)
        own = recipe.arguments(asked.data, asked.model)
        given = [*_of(asked, "data"), *_of(asked, "model")] if recipe.rows else []
    except TemperError as error:
        raise TemperError(called.placed(str(error))) from None
    finally:
        PRESENT.reset(token)
    notes = sys.stderr if "--json" in asked.others else sys.stdout
    for name, value in _replaced([*given, *asked.others]).items():
        print(f"note: {name} stands there twice; {value}, the last, counts", file=notes, flush=True)
    from_file = [f"{name}={value}" for name, value in settings.items()]
    pairs = (argument.lstrip("+").split("=", 1) for argument in asked.others if "=" in argument)
    arguments = [*own, *recipe.implied(settings | dict(pairs), asked), *from_file, *asked.others]
    try:
        _refuse_options_of_here(recipe, [*_named(asked), *from_file, *asked.others])
    except TemperError as error:
        raise TemperError(called.placed(str(error))) from None
    of_data = ("data=", "data.", "--help", "-h")
    if recipe.own and not asked.data and not any(a.startswith(of_data) for a in arguments):
        told = "note: no --data, so the example pairs that ship with Temper are used"
        print(told, file=notes, flush=True)
    experiment.CALLED[:] = [called]
    sys.argv = [str(recipe.file), *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = str(EXPERIMENTS)  # as `python SCRIPT` does
    runpy.run_path(str(recipe.file), run_name="__main__")


def _named(asked: Asked) -> Iterator[str]:
    """What ``--data`` and ``--model`` may name as an option, as it is no path that exists."""
    for group in ("data", "model"):
        given = getattr(asked, group)
        if given is not None and not Path(given).exists():
            yield f"{group}={given}"


def _refuse_options_of_here(recipe: Recipe, arguments: Sequence[str]) -> None:
    """
    Args:
        arguments: those that the user chose; options that a recipe chooses itself are Temper's.

    Raises:
        TemperError: an option is a file in ``conf`` of this folder. Only a script beside it would
            read that file, and Temper's own option of this name may mean other rows.
    """
    if CONF.exists() and os.path.realpath("conf") == os.path.realpath(CONF):
        return
    for name, equals, value in (a.lstrip("+").partition("=") for a in arguments):
        group = name.partition("@")[0]
        for option in value.split(",") if equals and "." not in group else ():
            file = os.path.join("conf", group, f"{option}.yaml")
            if not os.path.isfile(file):
                continue
            meant = f"temper recipes copy {recipe.name} FILE.py writes one"
            if option in names_of_options(group):
                meant += f"; or rename it, to choose the {option} that ships with Temper"
            raise TemperError(
                f"{group}={option}: only a script beside conf reads {file}, and temper run does "
                f"not; {meant}"
            )


def _of(asked: Asked, option: str) -> list[str]:
    """The settings that ``--data`` or ``--model`` stands for."""
    given = getattr(asked, option)
    return [] if given is None else _chosen(option, given)


def _replaced(arguments: Sequence[str]) -> dict[str, str]:
    """The settings that are given more than once with different values; their last values."""
    given: dict[str, list[str]] = {}
    for name, equals, value in (argument.partition("=") for argument in arguments):
        if equals and not name.startswith("-"):
            given.setdefault(name.lstrip("+"), []).append(value)
    return {name: values[-1] for name, values in given.items() if len({*values}) > 1}


def find_recipe(name: str) -> Recipe:
    """A recipe by its name, or by the name of its script.

    Raises:
        TemperError: there is none.
    """
    known = recipes()
    scripts = {recipe.script: recipe for recipe in known.values() if not recipe.settings}
    if found := known.get(name) or scripts.get(name):
        return found
    close = difflib.get_close_matches(name.lower(), [*known, *scripts], 2)
    meant = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
    if name.endswith(".py"):
        meant = f"run a script with Python: python {name}"
    elif Path(name).is_file():
        meant = f"a recipe's file is YAML and ends in .yaml: rename {name}"
    plain = name.lower().replace("-", "_")
    if plain in names_of_options("rl"):
        meant = f"a method is a setting: temper run grpo rl={plain}"
    losses = [*EXPERIMENTS.parent.glob(f"steps/losses/**/{name.replace('-', '_')}.py")]
    if name.isidentifier() and losses:
        meant = f"a loss is a setting: temper run dpo dpo/loss={name}"
    raise TemperError(f"there is no recipe {name}; {meant}")


def recipes() -> dict[str, Recipe]:
    """All recipes by name, in the order in which they are listed."""
    return {name: Recipe(name, **entry) for name, entry in read_recipes().items()}


def words_for(script: Path) -> list[str]:
    """The words after ``python`` that start an experiment: its script, or its module.

    Raises:
        TemperError: there is no such script, or it would import another ``pipeline``.
    """
    is_module = not script.is_file() and _is_module(str(script))
    if not is_module:
        _require_script(script)
    require_ours([str(script.parent), *sys.path])
    return ["-m", str(script)] if is_module else [str(script)]


def _is_module(name: str) -> bool:
    """Whether ``python -m`` runs a module of this name that is not Python's own. Nothing of it is
    imported."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        return False
    folders: Sequence[str] = [os.getcwd(), *sys.path]
    for part in name.split("."):
        spec = PathFinder.find_spec(part, folders)
        if spec is None:
            return False
        folders = list(spec.submodule_search_locations or ())
    return not folders or PathFinder.find_spec("__main__", folders) is not None


def _require_script(script: Path) -> None:
    """
    Raises:
        TemperError: it is no file with an experiment's script.
    """
    if not script.is_file():
        fault = ": it is a folder" if script.is_dir() else ""
        if str(script) in recipes():
            fault = f", but a recipe: temper run {script} --plan shows its plan, and temper "
            fault += f"recipes copy {script} FILE.py makes a script of it"
        raise TemperError(f"there is no script {script}{fault}")
    if script.suffix not in ("", ".py"):
        raise TemperError(
            f"{script} is no Python script; a recipe is planned by temper run --plan, and temper "
            "recipes copy RECIPE FILE.py makes a script of it"
        )


def show_recipes(console: Console) -> None:
    """Print each recipe with what it does and the format of its rows."""
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for heading in ("recipe", "what it does, and a row of --data"):
        table.add_column(heading, overflow="fold")
    for recipe in recipes().values():
        about = Text(recipe.about)
        if recipe.rows:
            about.append(f"\n{recipe.rows}", "dim")
        table.add_row(recipe.name, about)
    console.print(table)
    for line in (
        "temper run RECIPE --data FILE --model MODEL [SETTING=VALUE]... [--plan]",
        "temper run RECIPE --help          what each setting is",
        "temper recipes copy RECIPE FILE   as a .yaml or a .py of your own",
    ):
        console.print(Text(f"  {line}"))


def copy_recipe(name: str, target: Path) -> list[Path]:
    """Copy a recipe to a new file: YAML for ``temper run``, or Python with its config.

    Raises:
        TemperError: the file exists, or its suffix is neither .yaml nor .py.
    """
    recipe = find_recipe(name)
    if target.suffix in (".yaml", ".yml"):
        files = {target: _as_yaml(recipe, target)}
    elif target.suffix == ".py":
        files = {target: recipe.file.read_text("utf-8")}
        inherited = target.parent / "conf" / f"{target.stem}.yaml"
        files[inherited] = (CONF / f"{recipe.script}.yaml").read_text("utf-8")
    else:
        raise TemperError(f"{target}: name a file that ends in .yaml or .py")
    for file in files:
        if file.exists():
            raise TemperError(f"{file} is there already; name another file")
    try:
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
    except OSError:  # a disk may be full: what is half there would be in the way of another try
        for file in files:
            file.unlink(missing_ok=True)
        raise
    return list(files)


def _as_yaml(recipe: Recipe, target: Path) -> str:
    """The recipe as YAML, with its initial settings."""
    content = read_yaml((CONF / f"{recipe.script}.yaml").read_text("utf-8"))
    content.pop("defaults", None)
    own = [setting.partition("=") for setting in recipe.own if recipe.rows]
    for group, _, option in own:
        content = read_options(group)[option][1] | content
    lines = [
        f"# {recipe.about}",
        f"# Run it with `temper run {target}`; --plan shows what would run, and why. More",
        f"# settings can stand here or be typed; `temper run {recipe.name} --help` explains them.",
        f"recipe: {recipe.name}",
    ]
    if recipe.rows:
        lines += [
            f"data: data.jsonl  # rows of {recipe.rows}",
            "model: MODEL  # a Hugging Face folder, a .gguf file, OWNER/NAME of the Hub, a result",
        ]
    lines += [f"{group}: {option}" for group, _, option in own]
    settings = yaml.safe_dump(content, sort_keys=False, allow_unicode=True) if content else ""
    return "\n".join(lines) + f"\n\n{settings}"


def _asked(words: Sequence[str]) -> Asked:
    named: dict[str, str] = {}
    others: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        option, has_value, value = word.partition("=")
        if option not in _OPTIONS:
            if option in _SHORT:
                raise TemperError(f"unknown option {option}; did you mean {_SHORT[option]}?")
            if option.startswith("-") and (similar := did_you_mean(option, _OPTIONS, 0.8)):
                raise TemperError(f"unknown option {option}{similar}")
            before = others[-1] if others else ""
            is_bare = "=" not in word and (before in _FLAGS or not before.startswith("-"))
            if others and is_bare and (option := _option_for(word)) and option[2:] not in named:
                raise TemperError(f"{word} is no setting; did you mean {option} {word}?")
            others.append(word)
            continue
        if not (value if has_value else waiting):
            raise TemperError(f"{option} needs a value")
        if option[2:] in named:
            raise TemperError(f"{option} stands there twice; give one, or a folder with all files")
        named[option[2:]] = value if has_value else waiting.pop(0)
    if not (others and others[0]) or others[0].startswith("-") or "=" in others[0]:
        raise TemperError("name a recipe or a .yaml file first, as in temper run dpo")
    return Asked(others[0], named.get("data"), named.get("model"), others[1:])


def _option_for(word: str) -> str:
    """The option that a path without one belongs to; empty if it is no path."""
    path = Path(word)
    if not path.exists():
        return ""
    return "--model" if path.suffix == ".gguf" or (path / "config.json").exists() else "--data"


def _from_file(asked: Asked) -> tuple[Asked, dict[str, str]]:
    """The recipe and the settings of a file; what is typed overrides the file."""
    file = Path(asked.recipe)
    content = _read(file)
    if content["recipe"].endswith((".yaml", ".yml")):
        raise TemperError(
            f"{file}: recipe: {content['recipe']}; name one that temper recipes lists"
        )
    if "defaults" in content:
        raise TemperError(
            f"{file} takes no defaults list; name a choice as a setting, as in `model: local` or "
            "`dpo/loss: ipo`"
        )
    settings = {str(name): value for name, value in content.items() if name != "recipe"}
    if empty := [name for name in ("data", "model") if settings.get(name, "") is None]:
        raise TemperError(f"{file}: {empty[0]} has no value; write a path, or delete the line")
    found: dict[str, str | None] = {"data": asked.data, "model": asked.model}
    given = [(name, value) for name, value in found.items() if value]
    typed = [f"{name}{end}={value}" for name, value in given for end in ("", ".path")]
    typed += asked.others
    for name in found:
        if not isinstance(settings.get(name), str | Mapping | None):
            raise TemperError(f"{file}: {_ONE_PATH.format(name)}")
        if settings.get(name) is not None and f"{name}.path" in settings:
            raise TemperError(f"{file}: {name} and {name}.path both stand there; leave one out")
        if isinstance(said := settings.get(name), str):
            if name == "data" and _MIXTURE in settings and said not in read_options(name):
                raise TemperError(f"{file}: data and {_MIXTURE} both stand there; leave one out")
            found[name] = found[name] or settings.pop(name)
            settings.pop(name, None)
    try:
        told = dict(_settings(settings))
    except (TemperError, RecursionError) as error:  # the latter of a group that contains itself
        raise TemperError(f"{file}: {error}") from None
    overridden = {argument.partition("=")[0] for argument in typed}
    told = {name: value for name, value in told.items() if name not in overridden}
    return Asked(content["recipe"], **found, others=asked.others), told


def _read(file: Path) -> Mapping[str, Any]:
    """The content of a recipe's file."""
    if not file.exists():
        raise TemperError(f"there is no file {file}; temper recipes copy dpo {file}")
    content = read_settings(file)
    if not isinstance(content, Mapping) or not isinstance(content.get("recipe"), str):
        raise TemperError(f"{file}: say which recipe it is, as in `recipe: dpo`")
    return content


def _settings(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested values as settings of a command line, each with its value."""
    for key, value in content.items():
        is_group = isinstance(value, Mapping) and value and f"{prefix}{key}" != _MIXTURE
        if is_group and all(_OF_SETTING.fullmatch(str(name)) for name in value):
            yield from _settings(value, f"{prefix}{key}.")
            continue
        try:
            yield f"{prefix}{key}", _typed(value)
        except TemperError as error:
            raise TemperError(f"{prefix}{key}: {error}") from None


def _chosen(group: str, given: str) -> list[str]:
    """The settings of the group ``data`` or ``model`` for an option, the Hub's name, or a path."""
    if given in read_options(group) and given not in _BARE and not Path(given).exists():
        return [f"{group}={given}"]
    if _is_of_hub(given) and named_artifact(given) is None:
        repository, _, revision = given.removeprefix("hub:").partition("@")
        hub = [f"{group}.hub={repository}", f"{group}.revision={revision or 'main'}"]
        return [*_OF_HUB[group], *hub]
    if "," in given and not Path(given).exists() and all(map(os.path.exists, given.split(","))):
        raise TemperError(f"--{group} {given}: {_ONE_PATH.format(group)}")
    return [_OF_PATH[group], f"{group}.path={_typed(given)}"]


def _is_of_hub(given: str) -> bool:
    """Whether it is ``OWNER/NAME`` or ``OWNER/NAME@REVISION`` of the Hub, and not a local path."""
    name = given.removeprefix("hub:")
    is_file = Path(name).suffix.lower() in _OF_FILES
    return bool(_HUB.fullmatch(name)) and not Path(name).parent.exists() and not is_file


def _escaped(found: re.Match[str]) -> str:
    return found[1] * 2 + ("\\'" if found[2] else "")


def _typed(value: Any) -> str:
    """A value in the syntax of Hydra's command line."""
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and isinstance(yaml.safe_load(value), str)
        return value if is_plain else f"'{_QUOTE.sub(_escaped, value)}'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_name(k)}:{_typed(inner)}" for k, inner in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(_typed, value))}]"
    return json.dumps(value)


def _name(name: Any) -> str:
    """A name within braces in the syntax of Hydra's command line.

    Raises:
        TemperError: that syntax has no such name.
    """
    text = str(name)
    if not _NAME.fullmatch(text):
        raise TemperError(
            f"{text!r} cannot be a name here; letters from a to z, digits, blanks and most signs "
            "can, quotes and other letters cannot"
        )
    if not isinstance(name, str) or _NO_NAME.fullmatch(text):
        raise TemperError(f"{text!r} reads as a value, and not as a name; put a letter before it")
    return _ESCAPED_IN_NAMES.sub(r"\\\g<0>", text)
