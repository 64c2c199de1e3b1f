"""Names the setting that was probably meant by one that does not exist.

Any other refusal of Hydra's or OmegaConf's keeps its own words, on one line.

Users remember the end of a setting's path better than its beginning, and know its name in other
tools. So an unknown setting is first compared by the last part of its path (``beta=0.05`` →
``dpo.loss.beta``), as a choice (``loss=ipo`` → ``dpo/loss=ipo``), and with the names in
``experiments/other_names.yaml``; then by its spelling.
"""

import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.base.errors import TemperError
from pipeline.base.text import did_you_mean
from pipeline.configs.groups import Choices
from pipeline.configs.setting_docs import meanings_of
from pipeline.configs.shipped import EXPERIMENTS, names_of_options, read_yaml, shipped_groups

MOST_SUGGESTIONS = 4
_HYDRA_OPTIONS = (
    "--help", "-h", "--hydra-help", "--version", "--cfg", "-c", "--resolve", "--package",
    "--run", "-r", "--multirun", "-m", "--shell-completion", "-sc", "--config-path", "-cp",
    "--config-name", "-cn", "--config-dir", "-cd", "--info", "-i", "--experimental-rerun",
)  # fmt: skip
_UNKNOWN = re.compile(r"Could not override '([^']+)'")
_OURS = ("--plan", "--dry", "--budget", "--json", "--quiet", "--verbose")


@dataclass(frozen=True)
class Known:
    """The settings and choices of an experiment.

    Attributes:
        keys: the dotted names of settings.
        groups: the names of the options of each choice, by its path with slashes.
        unchosen: settings that only options have which are not chosen, with the names of these.
        choices: the types of the options of each choice.
    """

    keys: Sequence[str]
    groups: Mapping[str, Sequence[str]]
    unchosen: Mapping[str, Sequence[str]] = field(default_factory=dict)
    choices: Choices = field(default_factory=dict)

    @classmethod
    def of(cls, schema: type, choices: Choices, arguments: Sequence[str]) -> "Known":
        """What is known of an experiment with the choices that a command line's arguments make."""
        keys = list(_fields_of(schema))
        groups: dict[str, Sequence[str]] = {g: names_of_options(g) for g in shipped_groups()}
        unchosen: dict[str, list[str]] = {}
        for path, types in choices.items():
            for option, fields in types.items():
                for key in _keys_of(fields, path):
                    unchosen.setdefault(key, []).append(f"{path.replace('.', '/')}={option}")
            groups[path.replace(".", "/")] = list(types)
            typed = (argument.partition("=") for argument in arguments)
            chosen = [option for group, _, option in typed if group == path.replace(".", "/")]
            if chosen and chosen[-1] in types:
                keys = [key for key in keys if not key.startswith(f"{path}.")]
                keys += _keys_of(types[chosen[-1]], path)
        unchosen = {k: c for k, c in unchosen.items() if k not in keys}
        return cls(keys, groups, unchosen, choices)

    def about(self, group: str, word: str) -> str:
        """An option of a group with the setting of it whose meaning has this word; empty if there
        is none."""
        path = group.replace("/", ".")
        for option, kind in self.choices.get(path, {}).items():
            for name, meaning in meanings_of(kind).items():
                if re.search(rf"\b{re.escape(word)}\b", meaning, re.IGNORECASE):
                    return f"{group}={option} with {path}.{name}"
        return ""

    def suggestions(self, key: str, value: str = "") -> list[str]:
        """The settings that ``key=value`` may mean, as typed on the command line."""
        prefix, _, last = key.rpartition(".")
        translated, _ = ("", "") if self._is_ours(last) else _in_other_tools(last)
        meant, _, fixed = (translated or last).partition("=")
        typed = fixed or value
        chosen = [g for g in self.groups if f"/{g}".endswith(f"/{meant.replace('.', '/')}")]
        if options := [f"{g}={typed}" for g in chosen if typed in self.groups[g]]:
            return options
        above = prefix.partition(".")[0]
        places = (_ending(self.keys, place, meant) for place in (prefix, above, ""))
        found = next(filter(None, places), [])
        found = [name for name in found if name.replace(".", "/") not in chosen]
        if found:
            return [f"{name}={typed}" if typed else name for name in found]
        if chosen:
            return [f"{g}={'|'.join(self.groups[g])}" for g in chosen]
        places = (_ending(self.unchosen, place, meant) for place in (prefix, ""))
        if found := next(filter(None, places), []):
            return [f"{_either(self.unchosen[name])} {name}={typed or '…'}" for name in found]
        return [] if translated else self._alike(prefix, meant, key, value)

    def advice(self, key: str) -> str:
        """What to do in place of a setting that only other tools have, or have in this place; empty
        for any other."""
        if "." in key and (of_place := _other_names().get(key)):
            return of_place
        last = key.rpartition(".")[2]
        meant, advice = _in_other_tools(last)
        return "" if self._is_ours(last) or (meant and self.suggestions(key, "")) else advice

    def _is_ours(self, last: str) -> bool:
        """Whether the last part of a key is that of one of these settings, or nearly."""
        lasts = {key.rpartition(".")[2] for key in self.keys}
        return bool(difflib.get_close_matches(last, lasts, 1, 0.85))

    def _alike(self, prefix: str, last: str, key: str, value: str) -> list[str]:
        near = [k for k in self.keys if not prefix or k.startswith(f"{prefix.partition('.')[0]}.")]
        lasts = list(dict.fromkeys(k.rpartition(".")[2] for k in near))
        close = difflib.get_close_matches(last, lasts, n=1, cutoff=0.75)
        found = [k for k in near if k.rpartition(".")[2] in close]
        whole = difflib.get_close_matches(key, self.keys, n=3, cutoff=0.6)
        paths = {group.replace("/", "."): group for group in self.groups}
        chosen = [paths[p] for p in difflib.get_close_matches(key, paths, cutoff=0.8)]
        if options := [f"{g}={value}" for g in chosen if value in self.groups[g]]:
            return options
        whole = [k for k in whole if did_you_mean(last, [k.rpartition(".")[2]], 0.5)]
        return list(dict.fromkeys([*(k for k in whole if k in found), *found, *whole]))


def _ending(keys: Iterable[str], prefix: str, last: str) -> list[str]:
    """The keys below a prefix that end in the name of a setting."""
    below = f"{prefix}." if prefix else ""
    ends = (key for key in keys if f".{key}".lower().endswith(f".{last.lower()}"))
    return [key for key in ends if key.startswith(below)]


def _either(choices: Sequence[str]) -> str:
    """Choices of one group as one: ``dpo/loss=alphapo|simpo``."""
    group = choices[0].partition("=")[0]
    return f"{group}={'|'.join(choice.partition('=')[2] for choice in choices)}"


def _other_names() -> Mapping[str, str]:
    return read_yaml((EXPERIMENTS / "other_names.yaml").read_text("utf-8"))


def _in_other_tools(name: str) -> tuple[str, str]:
    """What another tool's setting is called here, and a sentence for where there is no such
    setting. Either may be empty."""
    found = _other_names().get(name, "")
    meant, bar, advice = found.partition(" | ")
    return (meant, advice) if bar or " " not in found else ("", found)


def unknown_setting(key: str, value: str, known: Known) -> str:
    """The error for a setting that does not exist."""
    if below := [name for name in known.keys if name.startswith(f"{key}.")]:
        return f"{key} is no single setting; set one of it, as in {below[0]}="
    if advice := known.advice(key):
        return f"unknown config key {key!r}; {advice}"
    meant = _meant(known.suggestions(key, value)) or "; --help lists every setting"
    return f"unknown config key {key!r}{meant}"


def unknown_of(error: Exception) -> str:
    """The setting that an error of Hydra's calls unknown; empty for other errors."""
    found = _UNKNOWN.search(str(error))
    return found[1] if found else ""


def unknown_settings(keys: Sequence[str], known: Known, arguments: Sequence[str]) -> str:
    """The error for several settings that do not exist, each with what was probably meant."""
    told = []
    for key in keys:
        said = unknown_setting(key, _value_of(key, arguments), known)
        told.append(f"{key} ({said.removeprefix(f'unknown config key {key!r}; ')})")
    return f"unknown config keys: {', '.join(told)}"


def refuse_options(arguments: Sequence[str], known_of: Callable[[], Known]) -> None:
    """Refuse arguments that are neither options nor settings.

    Args:
        known_of: returns the known settings; called only if an argument is refused.

    Raises:
        TemperError: an argument is refused; the message shows how to write the probable setting.
    """
    takes_words = any(a.startswith("-") and a not in ("-m", "--multirun") for a in arguments)
    for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        option, _, value = argument.partition("=")
        if option in _HYDRA_OPTIONS:
            continue
        if argument.startswith("-"):
            name = option.lstrip("-").replace("-", "_")
            if said := known_of().advice(name):
                raise TemperError(f"unknown option {option}; {said}")
            value = value or ("" if following.startswith("-") or "=" in following else following)
            near = difflib.get_close_matches(option, (*_OURS, *_HYDRA_OPTIONS), 1, 0.75)
            meant = _meant(near or known_of().suggestions(name, value))
            raise TemperError(f"unknown option {option}: settings are written key=value{meant}")
        if "=" not in argument and not argument.startswith("~") and not takes_words:
            meant = _meant_by_word(argument, "" if "=" in following else following, known_of())
            raise TemperError(f"{argument!r} is no setting: settings are written key=value{meant}")


def _meant_by_word(word: str, value: str, known: Known) -> str:
    """What a word without ``=`` may stand for: a file of data, or a setting before its value."""
    if Path(word).exists() and "data.path" in known.keys:
        return _meant([f"data.path={word}"])
    return _meant([s if "=" in s else f"{s}=…" for s in known.suggestions(word, value)])


def _meant(suggested: Sequence[str]) -> str:
    listed = " or ".join(suggested[:MOST_SUGGESTIONS])
    return f"; did you mean {listed}?" if listed else ""


def config_error(error: Exception, known: Known, arguments: Sequence[str]) -> str:
    """What Hydra or OmegaConf says, on one line; for a setting or choice that does not exist, also
    the one that was probably meant."""
    said = f"{error}\n{error.__cause__ or ''}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    first = lines[0] if lines else ""
    if option := re.search(r"Could not find '(.+)/(.*)'", first):
        options = re.findall(r"^\t(\S+)$", said, re.MULTILINE)
        if not options:
            similar = did_you_mean(option[1], known.groups)
            return f"{option[1]}={option[2]}: there is no choice {option[1]}{similar}"
        meant = known.about(option[1], option[2])
        similar = f"; did you mean {meant}?" if meant else did_you_mean(option[2].lower(), options)
        return f"unknown choice {option[1]}={option[2]}; known: {', '.join(options)}{similar}"
    if unknown := _UNKNOWN.search(first):
        key = unknown[1].partition("@")[0].replace("/", ".")
        value = _value_of(key, arguments)
        if key not in known.keys and not value.startswith("{"):
            return unknown_setting(key, value, known)
    if file := re.match(r"In '(.+)': ConfigKeyError raised while composing config:$", first):
        key = re.search(r"full_key: ([^\s\[]+)", said)
        if key and key[1] not in known.keys:
            return f"{file[1]}.yaml: {unknown_setting(key[1], '', known)}"
    if several := re.search(r"Ambiguous value for argument '([^=]+)=(.*)'$", first):
        key, value = several[1], several[2]
        return (
            f"{key}={value} are several values: with -m each is a job of one run; "
            f"a list is written {key}=[{value}], a text {key}=\\'{value}\\'"
        )
    merged = re.search(r"override ([\w.]+)=(\S*)$", first)
    if merged and (group := merged[1].replace(".", "/")) in known.groups:
        option = merged[2] if merged[2] in known.groups[group] else "|".join(known.groups[group])
        return f"{merged[1]} is a choice: {group}={option}"
    if merged and "is not a ListConfig" in said:
        return f"{merged[1]} is a list: {merged[1]}=[{merged[2]}]"
    if isinstance(error, AssertionError | AttributeError | ValueError):  # Hydra's, without a name
        for key, value in (argument.split("=", 1) for argument in arguments if "=" in argument):
            if key not in known.groups and (key := key.replace("/", ".")) not in known.keys:
                return unknown_setting(key, value, known)
    if isinstance(error, OverrideParseException):
        lines.insert(0, error.override)
    if not isinstance(error, HydraException | OmegaConfBaseException):
        lines[:1] = [f"{type(error).__name__}: {first}"]
    unsaid = ("object_type", "reference_type", "To append")  # a schema takes no further settings
    kept = [line for line in lines if not line.startswith(unsaid)]
    return f"the settings cannot be read: {'; '.join(dict.fromkeys(kept))}"


def _value_of(key: str, arguments: Sequence[str]) -> str:
    """The value of a setting on the command line; the last one counts."""
    typed = (argument.partition("=") for argument in arguments)
    values = [v for n, _, v in typed if n.lstrip("+~").partition("@")[0].replace("/", ".") == key]
    return values[-1] if values else ""


def _keys_of(fields: type, path: str) -> list[str]:
    return [f"{path}.{key}" for key in _fields_of(fields)]


@cache
def _fields_of(config: type) -> tuple[str, ...]:
    """The dotted names of all settings in a dataclass; several choices offer the same ones."""
    return tuple(dotted_keys(OmegaConf.structured(config)))


def dotted_keys(config: Any, prefix: str = "") -> Iterator[str]:
    """The dotted names of all settings in a config."""
    for key in config:
        node = config._get_node(key)
        if isinstance(node, DictConfig) and not node._is_none() and len(node):
            yield from dotted_keys(node, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
