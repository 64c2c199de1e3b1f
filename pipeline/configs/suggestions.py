"""Turns Hydra's errors into one sentence with the setting that was probably meant.

Users remember the end of a setting's path better than its beginning, and know its name in other
tools. So an unknown setting is first compared by the last part of its path (``beta=0.05`` →
``dpo.loss.beta``), as a choice (``loss=ipo`` → ``dpo/loss=ipo``), and with the names in
``experiments/other_names.yaml``; then by its spelling.
"""

import difflib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_origin

from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf

from pipeline.base.errors import TemperError
from pipeline.base.text import did_you_mean
from pipeline.configs.field_types import annotations_at
from pipeline.configs.groups import Choices
from pipeline.configs.setting_docs import meanings_of
from pipeline.configs.shipped import EXPERIMENTS, names_of_options, read_yaml, shipped_groups

MOST_SUGGESTIONS = 4
_HYDRA_OPTIONS = (
    "--help", "-h", "--hydra-help", "--version", "--cfg", "-c", "--resolve", "--package",
    "--run", "-r", "--multirun", "-m", "--shell-completion", "-sc", "--config-path", "-cp",
    "--config-name", "-cn", "--config-dir", "-cd", "--info", "-i", "--experimental-rerun",
)  # fmt: skip
_TYPES = {
    "Float": "a number",
    "Integer": "a whole number",
    "Boolean": "true or false",
    "Path": "a path",
}
"""OmegaConf's names of types, in plain words."""
_PLAINLY = r"""
override [\w.]+=\{.*; (?:field .* is not Optional|Incompatible value 'None').*; full_key: ([^\s;]+)
    \1 cannot be null; leave it out for its default
override [\w.]+=\{.*; Value '(.*)' of type .* could not be converted to ([\w ]+); full_key: ([^\s;]+)
    \3=\1 is no value for it: \2 is needed
override ([\w.]+)=\{.*; Cannot merge DictConfig with ListConfig;.* reference_type=Dict
    \1 has a list where names with values belong, as in {NAME: VALUE}
override ([\w./@]+)=None; Value .* could not be converted to ([\w ]+)
    \1=None is no value for it: \2 is needed, or null where it may be
override ([\w./@]+=.*?); Value .* could not be converted to ([\w ]+)
    \1 is no value for it: \2 is needed
override ([\w./@]+=.*?); Value .* is not a valid bool
    \1 is no value for it: true or false is needed
override ([\w.]+)=null; (?:field .* is not Optional|Incompatible value)
    \1 cannot be null; leave it out for its default
override ~(\S+); .* does not support deletion|Could not delete (?:from config\. )?'([^'=]+)
    ~\1\2: a setting cannot be deleted; leave it out for its default, or set it to null where it may be
override ([\w.]+)=(?:[^;]*; Cannot assign .* to Dict\[|\[.*; Cannot merge Dict)
    \1 takes names with values: '\1={NAME: VALUE}'
override ([\w./@]+=.*?); Value .* is incompatible with type hint '\w+\[(.*)\]'
    \1 is no value for it; it takes one of \2
override ([\w./@]+=.*?); Value .* is not a valid input for <enum '(\w+)'>
    \1 is no value for it; it takes one name of \2
override .*Invalid type assigned: NoneType is not a subclass of .*full_key: ([^\s;]+)
    \1 cannot be null; leave it out
override \+([\w.]+)\.\w+=.*; Invalid type assigned: dict is not a subclass of (\w+)
    \1 is no part of the config; settings of \2 are written 'NAME={KEY: {SETTING: VALUE}}'
override .*Invalid type assigned: \w+ is not a subclass of (\w+)\. value: (.*?); full_key: ([^\s;]+)
    \3 takes settings of \1, as in {NAME: VALUE}, and \2 is none
override ([\w.]+)=.*; Key (\w+) \(\w+\) is incompatible with \(str\)
    \1 takes texts as names: \2 is written \1.\2=VALUE, and "\2" in a file
override ([\w.]+)=.*; (?:Key (.+) \(\w+\) is incompatible with \(str\)|Incompatible key type '(None)Type')
    \1 takes texts as names: \2\3 can be one in a file, in quotes
override ([\w.]+)=.*; (?:Cannot (?:set value of|change) read-only|ListConfig is read-only)
    \1 cannot be set: the settings of a class with frozen=True are fixed within a dict or list; leave frozen=True out of the class
override ([\w.]+)=(.*?); Cannot convert '(?:list|dict)' to string
    \1 takes one text, and \2 is several
override ([\w.]+)=\{*([^:]*?)\}*(?::.*?)?; (?:Invalid .* not a ListConfig|Cannot merge .* with)
    \1 takes a list: \1=[\2]
Could not override ''\.
    = names no setting; settings are written key=value
Multiple values for ([\w./]+)\. To override
    +\1: leave out the +, since \1 has a value already
Ambiguous value for argument '([\w./]+/\w+=.*?)'
    \1 names several choices; -m \1 tries each
Ambiguous value for argument '([\w.]+)=(.*?)'
    \1 was given several values; -m \1=\2 tries each
Sweep parameters '(.*)' requires --multirun
    \1 stands for several values; -m \1 tries each
BasicSweeper does not support
    -m tries values that are listed, as in KEY=1,2 or KEY=range(1,4); temper tune searches an interval
In '(\w+)(/[^']+)': ConfigKeyError .*; Key '\1' not in '\w+'
    \1\2.yaml: there is no \1 below \1; if its settings are named as on the command line, its first line must be: # @package _global_
Interpolation key '(.*)' not found; full_key: ([^\s;]+)
    \2 refers to \1, and there is no such setting
Environment variable '(.*)' not found\W+full_key: ([^\s;]+)
    \2 needs the environment variable \1, which is not set
Unsupported interpolation type (\w+); full_key: ([^\s;]+)
    \2: there is no ${\1:…}; there are ${KEY} and ${oc.env:NAME}
Recursive interpolation detected; full_key: ([^\s;]+)
    \1 refers to itself
interpolation '(.*)': Value .* could not be converted to ([\w ]+); full_key: ([^\s;]+)
    \3=\1 is no value for it: \2 is needed
[Mm]issing mandatory value: ([\w.]+)
    \1 is missing; set \1=VALUE
Cannot find primary config '(.*?)'
    there is no \1.yaml in the folder of configs
"""  # noqa: E501
"""Parts of messages of Hydra and OmegaConf; below each, how it is put plainly."""
_NO_MEMBER = re.compile(r"override ([\w.]+=(.*?)); Invalid value .*, expected one of \[([^\]]*)\]")
_OURS = ("--plan", "--quiet", "--verbose")
_OTHER_OPTIONS = {
    **dict.fromkeys(("--dry-run", "-p", "-n"), "--plan shows what would run"),
    "--config": "temper run FILE.yaml takes settings from a file",
    "--force": "force=[STEP] makes a step again",
    "--continue": "leave it out, since an interrupted run goes on by itself",
}
"""Options of other tools that stand for no setting, and what to do here."""


@dataclass(frozen=True)
class Known:
    """The settings and choices of an experiment.

    Attributes:
        keys: the dotted names of settings.
        groups: the names of the options of each choice, by its path with slashes.
        unchosen: settings that only options have which are not chosen, with the names of these.
    """

    keys: Sequence[str]
    groups: Mapping[str, Sequence[str]]
    unchosen: Mapping[str, Sequence[str]] = field(default_factory=dict)
    schema: type | None = None
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
        return cls(keys, groups, unchosen, schema, choices)

    def takes_list(self, key: str) -> bool:
        """Whether a setting takes several values at once."""
        found = annotations_at(self.schema, self.choices, key) if self.schema else ()
        return any((get_origin(kind) or kind) in (list, tuple) for kind in found)

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
    found = known.suggestions(key, value)[:MOST_SUGGESTIONS]
    meant = f"did you mean {' or '.join(found)}?" if found else "--help lists every setting"
    return f"unknown config key {key!r}; {meant}"


def unknown_of(error: Exception) -> str:
    """The setting that an error of Hydra's calls unknown; empty for other errors."""
    found = re.search(r"Could not override '([\w.]+)'", str(error))
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
        if option in ("--help", "-h") and value:
            raise TemperError(f"{argument}: write {option} {value}")
        if option in _HYDRA_OPTIONS:
            continue
        if argument.startswith("-"):
            name = option.lstrip("-").replace("-", "_")
            value = value or ("" if following.startswith("-") or "=" in following else following)
            if said := _OTHER_OPTIONS.get(option.replace("_", "-")) or known_of().advice(name):
                raise TemperError(f"unknown option {option}; {said}")
            found = known_of().suggestions(name, value)[:MOST_SUGGESTIONS]
            if near := difflib.get_close_matches(option, (*_OURS, *_HYDRA_OPTIONS), 1, 0.75):
                found = near
            meant = f"; did you mean {' or '.join(found)}?" if found else ""
            raise TemperError(f"unknown option {option}: settings are written key=value{meant}")
        if (dashed := f"--{as_typed(argument).lstrip('-')}") in _OURS and dashed != argument:
            raise TemperError(f"unknown option {argument}; did you mean {dashed}?")
        if "=" not in argument and not argument.startswith("~") and not takes_words:
            words = [w for w in arguments[arguments.index(argument) + 1 :] if w != "="]
            meant = _meant_by_word(argument, "".join(words[:1]), known_of())
            raise TemperError(f"{argument!r} is no setting: settings are written key=value{meant}")


def _meant_by_word(word: str, following: str, known: Known) -> str:
    """What a word without ``=`` may stand for: a file of data, or a setting before its value."""
    if Path(word).exists() and "data.path" in known.keys:
        return f"; did you mean data.path={word}?"
    word, _, value = word.partition(":")
    value = value or ("" if "=" in following else following)
    suggested = known.suggestions(word, value)[:MOST_SUGGESTIONS]
    found = [name if "=" in name else f"{name}=…" for name in suggested]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def config_error(error: Exception, known: Known, arguments: Sequence[str]) -> str:
    """Hydra's multi-line message as one line, with the setting that was probably meant."""
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    parts = [str(error), *([str(error.__cause__)] if error.__cause__ else [])]
    lines = [line.strip() for part in parts for line in part.splitlines() if line.strip()]
    if option := re.search(r"Could not find '(.+)/(.*)'", lines[0]):
        options = re.findall(r"^\t(\S+)$", str(error), re.MULTILINE)
        if not options:
            similar = did_you_mean(option[1], known.groups)
            return f"{option[1]}={option[2]}: there is no choice {option[1]}{similar}"
        similar = did_you_mean(option[2].lower(), options)
        if meant := known.about(option[1], option[2]):
            similar = f"; did you mean {meant}?"
        return f"unknown choice {option[1]}={option[2]}; known: {', '.join(options)}{similar}"
    several = re.search(r"Ambiguous value for argument '([\w.]+)=(.*?)'", lines[0])
    if several and known.takes_list(several[1]):
        return f"{several[1]} takes a list: {several[1]}=[{several[2]}]"
    if file := re.match(r"In '(.+)': \w+ raised while composing config:$", lines[0]):
        named = re.search(r"full_key: ([^\s\[]+)", str(error))
        said = f"{named[1]}: {lines[1]}" if named else lines[1]
        if named and said.startswith(f"{named[1]}: Key '") and "incompatible" not in said:
            said = unknown_setting(named[1], "", known)
        return f"{file[1]}.yaml: {said}"
    if told := of_value("; ".join(lines), known):
        return told
    unknown = re.search(r"Could not override '([^']+)'", lines[0])
    typed = unknown[1].split("@")[0] if unknown else ""
    key = typed.replace("/", ".")
    if key in known.keys and "/" in typed:
        return f"{typed} is no choice but a setting: {key}={_value_of(key, arguments)}"
    owner = re.search(r"Key '(\S+)' not in '(\w+)'", str(error.__cause__))
    if owner and "/" not in typed and owner[1] not in key.split("."):
        place = re.search(rf"full_key: (\S+)\.{owner[1]}$", str(error.__cause__), re.MULTILINE)
        named = place[1] if place else key
        return f"{named}: {owner[2]} has no setting {owner[1]}, which was set in braces"
    if key in known.keys and owner:
        return f"unknown config key {key!r}; {owner[2]}, which was chosen, has no such field"
    if key and key not in known.keys:
        return unknown_setting(key, _value_of(key, arguments), known)
    kept = [line for line in lines if not line.startswith(("full_key", "object_type", "reference"))]
    return "; ".join(dict.fromkeys(kept))


def of_value(message: str, known: Known) -> str:
    """The sentence for a value that is refused, by OmegaConf's message ``override KEY=VALUE; …``;
    empty if there is none."""
    if chosen := re.search(r"override ([\w.]+)=(\S*); Invalid type assigned", message):
        group = chosen[1].replace(".", "/")
        if group in known.groups:
            names = known.groups[group]
            options = chosen[2] if chosen[2] in names else "|".join(names)
            return f"{chosen[1]} is not a value but a choice, with settings: {group}={options}"
        if chosen[1] not in known.keys:
            return unknown_setting(chosen[1], "", known)
    if wrong := _NO_MEMBER.search(message):
        similar = did_you_mean(wrong[2].lower(), wrong[3].split(", "))
        return f"{wrong[1]} is no value for it; choose from {wrong[3]}{similar}"
    return _put_plainly(message)


def _put_plainly(message: str) -> str:
    """The meaning of a message that is in the table; empty for any other."""
    for name, meaning in _TYPES.items():
        message = message.replace(f"be converted to {name}", f"be converted to {meaning}")
    table = iter(_PLAINLY.strip().splitlines())
    for pattern, plainly in zip(table, table, strict=True):
        if found := re.search(pattern, message):
            return found.expand(plainly.strip())
    return ""


def _value_of(key: str, arguments: Sequence[str]) -> str:
    """The value of a setting on the command line; the last one counts."""
    typed = (argument.partition("=") for argument in arguments)
    values = [v for n, _, v in typed if n.lstrip("+~").partition("@")[0].replace("/", ".") == key]
    return values[-1] if values else ""


def _unreadable(override: str) -> str:
    """The error for a setting that Hydra cannot parse, with its usual correction."""
    if several := re.search(r"\s([\w./]+=)", override.strip()):
        return f"{override} is several settings in one pair of quotes; end it before {several[1]}"
    key, _, value = as_typed(override).partition("=")
    bare = key.strip()
    if re.search(r"^[./]|[./]$|[./]{2}|/.*\.|\..*/", bare):
        bare = ".".join(re.findall(r"[^./]+", bare))
    value = value.lstrip("= ")
    if value.startswith("~"):
        return f"{override}: only a shell knows ~; write {bare}={os.path.expanduser(value)}"
    if re.fullmatch(r"[\w./@+~]+", bare) and f"{bare}={value}" != override:
        return f"{override} cannot be read as a setting; write {bare}={value}"
    return (
        f"{override} cannot be read as a setting; a value with commas, brackets, quotes "
        "or = goes in quotes, as in 'key=\"a, b\"', and a list is key=[a,b]"
    )


_TYPOGRAPHIC = str.maketrans(dict.fromkeys("“”„‟″", '"') | dict.fromkeys("‘’‚′", "'")
                             | dict.fromkeys("‐‑‒–—−", "-") | {"＝": "=", "\xa0": " "})  # fmt: skip


def as_typed(argument: str) -> str:
    """An argument with the quotes and dashes of a keyboard, in place of a text program's."""
    plain = argument.translate(_TYPOGRAPHIC)
    return argument if plain == argument else plain.replace('"', "")


def composing_error(error: ValueError, known: Known, arguments: Sequence[str]) -> str:
    """The error for a choice whose option is no name (``dpo/lora=8``), which Hydra refuses late."""
    for argument in arguments:
        group, _, option = argument.partition("=")
        if (names := known.groups.get(group)) and option not in names:
            return f"unknown choice {argument}; known: {', '.join(names)}"
        below = [key for key in known.keys if key.startswith(f"{group}.")]
        if below and group not in known.groups:
            return f"{argument}: {group} is no single setting; set one of it, as in {below[0]}="
        if not group.lstrip("+~"):
            return f"{argument} names no setting; settings are written key=value"
    return f"the configuration cannot be composed: {error}"


def set_within_null(arguments: Sequence[str], schema: type, known: Known) -> str:
    """An error that Hydra does not explain: a setting inside a setting that is null."""
    config = OmegaConf.structured(schema)
    for argument in arguments:
        key, _, value = argument.partition("=")
        parts = f"{key}{'.' * value.startswith('{')}".split(".")
        *outer, _ = itertools.accumulate(parts, "{}.{}".format)
        for name in outer:
            if OmegaConf.select(config, name, default=config) is None:
                group = name.replace(".", "/")
                how = f"choose one first: {group}=NAME"
                if group not in known.groups:
                    how = "give it a default in its class, or choices in main()"
                return f"{name} is null, so {key} cannot be set; {how}"
    return ""


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
