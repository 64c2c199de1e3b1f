"""``--help`` of an experiment: every setting with its value and a sentence."""

import re
import runpy
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from command_line import Said, script
from omegaconf import OmegaConf
from places import REPOSITORY

from pipeline import experiment
from pipeline.configs.setting_docs import explained

SCRIPTS = sorted(p for p in (REPOSITORY / "experiments").glob("*.py") if p.stem != "__init__")
DPO = REPOSITORY / "experiments/dpo_ultrafeedback.py"


@pytest.fixture(scope="module")
def page() -> Said:
    return script(DPO, "--help")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_setting_of_every_experiment_and_choice_has_a_sentence(path: Path) -> None:
    kinds: list[Any] = []

    def collect(build: Any, choices: Any = None) -> None:
        kinds.append(next(iter(get_type_hints(build).values())))
        kinds.extend(kind for types in (choices or {}).values() for kind in types.values())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "main", collect)
        program = runpy.run_path(str(path), run_name="__main__")
    # of the process of these tests, choices may also be classes that other tests have defined
    own = [value for value in program.values() if isinstance(value, type)]
    kinds = [kind for kind in kinds if kind.__module__.startswith("steps.") or kind in own]
    assert len(kinds) > 1
    silent = [
        f"{kind.__name__}: {setting.name}"
        for kind in kinds
        for group in explained(OmegaConf.structured(kind))
        for setting in group.settings
        if not setting.meaning
    ]
    assert not silent


def test_the_page_names_our_own_options_and_how_to_see_less_of_it(page: Said) -> None:
    assert page.status == 0
    for option in (
        "--plan",
        "-v, --verbose",
        "-q, --quiet",
        "-m, --multirun",
        "--help [PATH|WORD]",
    ):
        assert option in page.out
    assert "Hydra" not in page.out


def test_the_page_gives_values_sentences_papers_and_choices(page: Said) -> None:
    assert re.search(r"dpo\.loss\.beta = 0\.1 +the strength β of the KL penalty", page.out)
    assert re.search(r"dpo\.loss: .*Rafailov et al\. 2023", page.out)
    assert re.search(r"scale = demo +one of demo, full, own, smoke", page.out)
    assert re.search(r"dpo/loss = dpo +one of alphapo, aot", page.out)
    assert re.search(r"sft\.dtype = float32 .*", page.out)
    assert "One of float32," in page.out


def test_help_about_a_word_shows_the_settings_that_have_it() -> None:
    out = script(DPO, "--help", "warmup").out
    settings = re.findall(r"^  (\S+) =", out, re.MULTILINE)
    names = ("warmup_steps", "warmup_fraction", "warmup_from_zero")
    assert settings == [f"{step}.optimizer.{name}" for step in ("sft", "dpo") for name in names]
