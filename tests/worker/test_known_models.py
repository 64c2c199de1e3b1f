"""What the parent of warm workers spares them: the search for models, and first calls."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import REPOSITORY

from pipeline.worker.libraries import warm_imports

TOLD = """
import json, os, sys
read = []
sys.addaudithook(lambda event, of: read.append(str(of[0])) if event == "open" else None)
from contextlib import nullcontext
from pipeline.worker.libraries.known_models import models_known
with models_known() if sys.argv[1] == "known" else nullcontext():
    import transformers, transformers.models, transformers.models.auto
from transformers.utils import import_utils

def told(module):
    of = lambda names: {key: sorted(value) for key, value in names.items()}
    return [
        sorted(module.__all__), sorted(module._modules), sorted(module._class_to_module.items()),
        list(of(module._import_structure).items()), of(module._object_missing_backend),
    ]

print(json.dumps({
    "models": [told(sys.modules[f"transformers{of}"]) for of in ("", ".models", ".models.auto")],
    "searched": sum(path.endswith("modeling_llama.py") for path in read),
    "search": str(type(import_utils.create_import_structure_from_path)),
    "loader": [type(import_utils.__spec__.loader).__name__, [*vars(import_utils.__spec__.loader)]],
    "finders": [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path],
}))
"""


def told_by(code: str, cache: Path, *arguments: str, libraries: Path | None = None) -> Any:
    path = os.pathsep.join([str(REPOSITORY), *([str(libraries)] if libraries else [])])
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path, "TEMPER_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.slow
def test_transformers_is_the_same_whether_or_not_its_models_are_known(tmp_path: Path) -> None:
    usual = told_by(TOLD, tmp_path, "usual")
    first, second = told_by(TOLD, tmp_path, "known"), told_by(TOLD, tmp_path, "known")
    assert first["searched"] <= usual["searched"]
    assert (first["searched"], second["searched"]) == (1, 0)
    for name in usual.keys() - {"searched"}:
        assert usual[name] == first[name] == second[name]


LIBRARY = """
import os
from functools import cache

@cache
def create_import_structure_from_path(path):
    searches.append(str(path))
    names = {file: set(open(os.path.join(path, file)).read().split()) for file in os.listdir(path)}
    return {frozenset({"torch"}): names, "nothing": {}}

searches = []
"""
SEARCH = """
import importlib, json, sys
from pathlib import Path
from pipeline.worker.libraries.known_models import models_known

def search(*written):
    for file, text in written:
        Path(file).write_text(text)
    for name in [name for name in sys.modules if name.startswith("transformers")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    with models_known():
        from transformers.utils import import_utils
        models = Path(import_utils.__file__).parents[1] / "models"
        found = import_utils.create_import_structure_from_path(models)
        assert import_utils.create_import_structure_from_path(models) is found
    (backend, names), _ = found.items()
    assert [*backend] == ["torch"]
    return {file: sorted(n) for file, n in names.items()}, bool(import_utils.searches)

print(json.dumps([search(*written) for written in json.loads(sys.argv[1])]))
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """The folder of models of a library that is called transformers."""
    library = tmp_path / "libraries" / "transformers"
    for folder in ("utils", "models"):
        (library / folder).mkdir(parents=True)
    for file in ("__init__", "utils/__init__"):
        (library / f"{file}.py").write_text("")
    (library / "utils" / "import_utils.py").write_text(LIBRARY)
    (library / "models" / "llama.py").write_text("Llama")
    return library / "models"


def test_a_changed_library_is_searched_again(models: Path, tmp_path: Path) -> None:
    def search(*writings: list[tuple[Path, str]]) -> Any:
        """What one process finds after each of these edits, and whether it has searched."""
        edits = json.dumps([[(str(file), text) for file, text in edit] for edit in writings])
        return told_by(SEARCH, tmp_path / "cache", edits, libraries=models.parents[1])

    file = models.parent / "utils" / "import_utils.py"
    upper = LIBRARY.replace(".split()", ".upper().split()")
    assert search([]) == [[{"llama.py": ["Llama"]}, True]]
    assert search(
        [],
        [(models / "llama.py", "Llama LlamaTokenizer")],
        [(models / "qwen.py", "Qwen")],
        [(file, upper)],
        [],
    ) == [
        [{"llama.py": ["Llama"]}, False],
        [{"llama.py": ["Llama", "LlamaTokenizer"]}, True],
        [{"llama.py": ["Llama", "LlamaTokenizer"], "qwen.py": ["Qwen"]}, True],
        [{"llama.py": ["LLAMA", "LLAMATOKENIZER"], "qwen.py": ["QWEN"]}, True],
        [{"llama.py": ["LLAMA", "LLAMATOKENIZER"], "qwen.py": ["QWEN"]}, False],
    ]
    damaged = [(entry, "damaged") for entry in (tmp_path / "cache").rglob("*.json")]
    assert damaged
    assert search(damaged)[0][1] is True


def test_what_no_json_can_hold_is_searched_each_time(models: Path, tmp_path: Path) -> None:
    file = models.parent / "utils" / "import_utils.py"
    file.write_text(LIBRARY.replace('"nothing": {}', '"nothing": [1]'))
    found = told_by(SEARCH, tmp_path / "cache", "[[], []]", libraries=models.parents[1])
    assert [searched for _, searched in found] == [True, True]


def test_what_the_parent_calls_for_its_workers_is_there_and_finds_nothing() -> None:
    for module, name in warm_imports._FIRST_CALLS.values():
        assert getattr(importlib.import_module(module), name)("no model") is None
