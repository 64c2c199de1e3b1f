"""Random projects, each put together from a few idioms whose files have different names."""

import ast
import random
import re
from dataclasses import dataclass

from idiom import Idiom, idioms
from laboratory import Files

_READS_PLACES = re.compile(r"__file__|\bsteps\b|getsource|sys\.path|\bpathlib\b|subprocess")


@dataclass(frozen=True)
class Project:
    """Attributes: names: of the idioms it is made from."""

    names: tuple[str, ...]
    files: Files


def usable() -> list[Idiom]:
    """The idioms that can be part of a project: in any place, and within the documented limits."""
    within = (i for i in idioms() if not any(edit.class_ == "-" for edit in i.edits))
    return [i for i in within if not _READS_PLACES.search("\n".join(i.files.values()))]


def project(chance: random.Random) -> Project:
    """One to three idioms side by side, behind a package that exports their steps again."""
    chosen: list[Idiom] = []
    taken = {"steps", "links"}
    wanted = chance.choice([1, 2, 2, 3])
    for idiom in chance.sample(usable(), 40):
        names = {name.partition("/")[0].removesuffix(".py") for name in idiom.files} - {"steps"}
        if not names & taken and len(chosen) < wanted:
            chosen.append(idiom)
            taken |= names
    files: dict[str, str] = {}
    for number, idiom in enumerate(chosen):
        files |= {name: text for name, text in idiom.files.items() if name != "steps.py"}
        files[f"part{number}.py"] = idiom.files["steps.py"]
    files |= _links([_parameters(idiom) for idiom in chosen], chance)
    return Project(tuple(f"{idiom.topic}/{idiom.name}" for idiom in chosen), files)


def _parameters(idiom: Idiom) -> list[str]:
    """What the step of an idiom takes besides its output; only one idiom of a project takes any."""
    for node in ast.walk(ast.parse(idiom.files["steps.py"])):
        if isinstance(node, ast.FunctionDef) and node.name == "train":
            return [argument.arg for argument in node.args.args[1:]]
    return []


def _links(parameters: list[list[str]], chance: random.Random) -> Files:
    """The step, and a package between it and its parts."""
    imports = [
        "import part{0}\nrun{0} = part{0}.train\n",
        "from part{0} import train as run{0}\n",
        "def run{0}(out{1}):\n    from part{0} import train\n    return train(out{2})\n",
        "import part{0}\ndef run{0}(out{1}):\n    return part{0}.train(out{2})\n",
        "import functools, part{0}\nrun{0} = functools.partial(part{0}.train)\n",
        "import part{0}\nrun{0} = lambda out{1}: part{0}.train(out{2})\n",
    ]
    taken = ["".join(f", {name}" for name in names) for names in parameters]
    given = ["".join(f", {name}={name}" for name in names) for names in parameters]
    links = "".join(
        chance.choice(imports).format(number, *texts)
        for number, texts in enumerate(zip(taken, given, strict=True))
    )
    names = ", ".join(f"run{number}" for number in range(len(parameters)))
    reader = chance.choice([f"from links import {names}\n", "from links import *\n"])
    calls = ", ".join(f"run{number}(out{given[number]})" for number in range(len(parameters)))
    return {
        "links/__init__.py": f"from .inner import {names}\n",
        "links/inner.py": links,
        "steps.py": f"{reader}\ndef train(out{''.join(taken)}):\n    return [{calls}]\n",
    }
