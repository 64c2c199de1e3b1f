"""Which room of ``steps/`` uses which, and what of the code each shipped step's key reaches.

In a system whose keys hold code, the plan of the rooms is a part of the key: an import in the wrong
place computes references again that nobody changed. ``golden/closures.json`` holds the modules that
each step's key reaches, so that such an import is seen in review. After a change that is meant,

    PYTHONPATH=.:tests/support python tests/house/test_rooms.py

writes it anew.
"""

import ast
import importlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from places import GOLDEN, REPOSITORY

from pipeline.dag.step import StepFunction

STEPS = REPOSITORY / "steps"
CLOSURES = GOLDEN / "closures.json"

MOST_MODULES = 14
REPEATED = {"__init__", "config"}
"""File names that many rooms have."""
FOLDERS = sorted(
    file.parent for top in ("pipeline", "steps") for file in (REPOSITORY / top).rglob("__init__.py")
)


def modules(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.py") if file.stem != "__init__")


def of_repository(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@pytest.mark.parametrize("folder", FOLDERS, ids=of_repository)
def test_a_room_can_be_taken_in_and_its_door_names_its_modules(folder: Path) -> None:
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8"))) or ""
    if folder != STEPS:
        assert len(modules(folder)) <= MOST_MODULES
    if "ne module a " not in said and "ne file a " not in said:
        assert not [name for name in modules(folder) if f"``{name}``" not in said]
    rooms = [below.parent.name for below in folder.glob("*/__init__.py")]
    assert not [name for name in rooms if f"``{name}``" not in said]


@pytest.mark.parametrize("top", ["pipeline", "steps"])
def test_no_two_files_have_one_name(top: str) -> None:
    found = [file.stem for file in (REPOSITORY / top).rglob("*.py") if file.stem not in REPEATED]
    assert not [name for name in set(found) if found.count(name) > 1]


def shipped_steps() -> dict[str, StepFunction]:
    """Every step function that a file of ``steps/`` defines, by its name."""
    modules = [importlib.import_module(f"steps.{file.stem}") for file in STEPS.glob("*.py")]
    return {
        name: value
        for module in modules
        for name, value in sorted(vars(module).items())
        if isinstance(value, StepFunction) and value.function.__module__ == module.__name__
    }


@cache
def reached() -> dict[str, dict[str, str]]:
    """Of each step, by package, the modules that its key reaches."""
    found: dict[str, dict[str, str]] = {}
    for name, function in sorted(shipped_steps().items()):
        packages: dict[str, list[str]] = {}
        for module in sorted({unit.partition(":")[0] for unit in function.code()}):
            package, _, last = module.rpartition(".")
            packages.setdefault(package, []).append(last)
        found[name] = {package: " ".join(modules) for package, modules in packages.items()}
    return found


def test_keys_reach_the_modules_that_they_are_known_to_reach() -> None:
    assert reached() == json.loads(CLOSURES.read_text("utf-8"))


SCORING = {
    "reference_logprobs", "evaluate", "measure_kl", "sample_completions", "score_completions",
    "score_with_reward_model", "evaluate_reward_model",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SCORING))
def test_a_step_that_scores_reaches_no_training(name: str) -> None:
    assert "steps.training" not in reached()[name]
    assert "losses.dpo" not in str(reached()[name])


# --- what reruns after an edit ---------------------------------------------------------------

_TRAINING = {"train_sft", "train_kto", "train_reference_free", "training"}
_EVALUATIONS = {"base model", "before DPO", "after DPO"}
_DRAWN = {"divergence", *_EVALUATIONS}
_SCORED = {"reference_logprobs", *_DRAWN}
_OF_THE_LOSS = {"after DPO", "export"}


@dataclass(frozen=True)
class Edit:
    """A change of one place of a file of ``steps/``, and whose code it is: by the names that an
    experiment gives its results, and of other steps their own."""

    file: str
    old: str
    new: str
    reruns: set[str]


EDITS = {
    "gradient clipping": Edit(
        "training/optimizer.py", "else max_norm\n", "else 2 * max_norm\n", _TRAINING
    ),
    "a schedule": Edit("training/schedule.py", "1 - math.cos", "2 - math.cos", _TRAINING),
    "checkpoints": Edit("training/checkpoints.py", "8 * 2**20", "4 * 2**20", _TRAINING),
    "recomputation": Edit(
        "models/config.py", "LEAST_INPUT = 2**20", "LEAST_INPUT = 2**21", _TRAINING
    ),
    "the gradient of the head": Edit(
        "scoring/head.py", "z.mul_(squashed", "z.div_(softmax.squashed", _TRAINING
    ),
    "what a run reports": Edit("training/metrics.py", '"tokens": log', '"words": log', _TRAINING),
    "the loss that is trained": Edit(
        "losses/dpo.py", "logistic(chosen -", "logistic(2 * chosen -", {"training", *_OF_THE_LOSS}
    ),
    "a loss, which comes in with the arguments": Edit(
        "losses/simpo.py", "chosen - rejected - self", "rejected - self", set()
    ),
    "a statistic": Edit(
        "evaluation/length_control.py", "_RIDGE = 0.01", "_RIDGE = 0.02", _EVALUATIONS
    ),
    "how completions are drawn": Edit(
        "generation/draws.py", "right=True", "right=False", {"sample_completions", *_DRAWN}
    ),
    "log-probabilities": Edit(
        "scoring/logps.py",
        "segment_reduce(per_token.double()",
        "segment_reduce(per_token.float()",
        _TRAINING | _SCORED,
    ),
}
NOT_SEEN = {
    "the peak of a GPU": ("shared/accelerators.py", "Accelerator(312e12,", "Accelerator(313e12,"),
    "the heading of a summary": ("training/metrics.py", 'first and last step"', 'both ends"'),
    "the table of answers": ("evaluation/answers.py", '"before", "after",', '"then", "now",'),
    "a notice": ("models/positions.py", "not in kinds else None", 'not in kinds else ""'),
    "an error of the optimiser": ("training/optimizer.py", "the gradient norm is", "the norm is"),
    "an error of a row": (
        "scoring/examples.py",
        "at least one, and have",
        "one, and have",
    ),
}

_EDITED = """
import importlib, json, sys
from dataclasses import replace
from pathlib import Path

sys.path[:0] = ["experiments"]
from dpo_ultrafeedback import Config, dpo_ultrafeedback
from pipeline import look_again
from steps.sources import ModelSource, PreferenceData

for name, text in {"x.gguf": "GGUF", "x.jsonl": "{}"}.items():
    Path(name).write_text(text)
config = Config(
    model=ModelSource(path="x.gguf"), data=PreferenceData(path="x.jsonl"), measure_kl=True
)
OTHERS = "sample_completions score_completions train_kto train_reference_free tokenize_preferences"

def codes():
    look_again()
    results = dpo_ultrafeedback(config)
    found = {name: (step.made_by, step.code) for name, step in results.items()}
    inputs = [results["training"]]
    while inputs:
        step = inputs.pop()
        if step is not results["training"]:
            found.setdefault(step.name, (step.made_by, step.code))
        inputs += [used.step for used in step.inputs]
    for name in OTHERS.split():
        function = getattr(importlib.import_module(f"steps.{name}"), name)
        found[name] = function.made_by(), function.code()
    return found

before, changed = codes(), {}
for batch in json.loads(sys.stdin.read()):
    sources = {path: Path("steps", path).read_text() for path, _, _ in batch.values()}
    for path, old, new in batch.values():
        count = sources[path].count(old)
        assert count == 1, f"{old!r} is {count} times in {path}"
        Path("steps", path).write_text(sources[path].replace(old, new))
    now = codes()
    for path, source in sources.items():
        Path("steps", path).write_text(source)
    units = {
        step: {unit.partition(":")[0] for unit, _ in before[step][1].items() ^ now[step][1].items()}
        for step in before
    }
    for name, (path, _, _) in batch.items():
        module = "steps." + path.removesuffix(".py").replace("/", ".")
        changed[name] = sorted(step for step in before if module in units[step])
    reached = {step for name in batch for step in changed[name]}
    assert reached == {step for step in before if now[step][0] != before[step][0]}, units
print(json.dumps(changed))
"""


@pytest.fixture(scope="module")
def reruns(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Whose code each edit of a copy of this repository changes."""
    copy = tmp_path_factory.mktemp("copy")
    for folder in ("pipeline", "steps", "experiments"):
        shutil.copytree(REPOSITORY / folder, copy / folder)
    batches: list[dict[str, tuple[str, str, str]]] = []
    edits = {name: (edit.file, edit.old, edit.new) for name, edit in EDITS.items()} | NOT_SEEN
    for name, edit in edits.items():  # one of each file at a time, since that is how one is told
        others = [b for b in batches if edit[0] not in {file for file, _, _ in b.values()}]
        if not others:
            batches.append({})
        (others or batches[-1:])[0][name] = edit
    done = subprocess.run(
        [sys.executable, "-c", _EDITED],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        input=json.dumps(batches),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {name: set(steps) for name, steps in json.loads(done.stdout).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_reruns_the_steps_that_use_it_and_no_others(
    reruns: dict[str, set[str]], name: str
) -> None:
    assert reruns[name] == EDITS[name].reruns


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_SEEN)
def test_an_edit_of_what_people_read_reruns_nothing_that_reads_no_such_texts(
    reruns: dict[str, set[str]], name: str
) -> None:
    """Evaluations render prompts, and rendering keeps why a row cannot be rendered."""
    assert reruns[name] <= _EVALUATIONS


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["the peak of a GPU", "the heading of a summary", "an error of the optimiser"]
)
def test_an_edit_of_what_people_read_of_training_leaves_what_was_scored(
    reruns: dict[str, set[str]], name: str
) -> None:
    assert reruns[name] <= _TRAINING


if __name__ == "__main__":
    CLOSURES.write_text(json.dumps(reached(), indent=1) + "\n", "utf-8")
