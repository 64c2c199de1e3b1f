"""A setting that does not exist suggests the one that was probably meant."""

from pathlib import Path

import pytest
from command_line import script
from places import REPOSITORY

from experiments.dpo_ultrafeedback import CHOICES, Config
from pipeline.configs.suggestions import Known, unknown_setting

DPO = REPOSITORY / "experiments/dpo_ultrafeedback.py"


@pytest.fixture(scope="module")
def known() -> Known:
    return Known.of(Config, CHOICES, [])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        # the last part of a path
        ("beta=0.05", "dpo.loss.beta=0.05"),
        ("dpo.beta=0.05", "dpo.loss.beta=0.05"),
        ("warmup_steps=3", "sft.optimizer.warmup_steps=3 or dpo.optimizer.warmup_steps=3"),
        ("sft.learning_rate=1", "sft.optimizer.learning_rate=1?"),
        # a choice
        ("loss=ipo", "dpo/loss=ipo?"),
        ("lora=lora", "dpo/lora=lora or sft/lora=lora"),
        # of an option that is not chosen
        ("gamma=2", "dpo/loss=alphapo|simpo dpo.loss.gamma=2?"),
        ("lora_r=8", "dpo/lora=lora dpo.lora.r=8 or sft/lora=lora sft.lora.r=8?"),
        # what others call it
        ("dpo.lr=1e-6", "dpo.optimizer.learning_rate=1e-6?"),
        ("loss_type=ipo", "dpo/loss=ipo?"),
        ("dpo.gradient_checkpointing=true", "dpo.activation_checkpointing=full?"),
        # spelling
        ("dpo.loss.betta=1", "dpo.loss.beta"),
        ("evaluate.sample_promts=1", "evaluate.sample_prompts"),
    ],
)
def test_a_near_miss_names_what_was_meant(typed: str, meant: str, known: Known) -> None:
    key, _, value = typed.partition("=")
    error = unknown_setting(key, value, known)
    assert "did you mean " in error
    assert meant in error


@pytest.mark.parametrize(
    ("keys", "typed", "told"),
    [
        (["rl.inner_epochs", "iterations"], "num_train_epochs=3", "iterations=N*P/rl.prompts"),
        (["rl.inner_epochs", "iterations"], "epochs=3", "iterations=N*P/rl.prompts"),
        (["tokenize.lost", "sft.epochs"], "loss_type=nll", "in the recipe sft, as in loss=dft"),
        (["tokenize.lost", "sft.epochs"], "num_train_epochs=3", "did you mean sft.epochs=3?"),
        (["tokenize.lost", "sft.epochs"], "eval_strategy=no", "--help lists every setting"),
    ],
)
def test_another_tool_s_name_is_no_slip_of_a_setting_that_is_spelled_alike(
    keys: list[str], typed: str, told: str
) -> None:
    """`num_train_epochs` of GRPO is not `inner_epochs`, which repeats one batch."""
    key, _, value = typed.partition("=")
    error = unknown_setting(key, value, Known(keys, {}, {}))
    assert told in error
    assert "lost" not in error
    assert "inner_epochs" not in error


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("dpo.beta=0.05", "dpo.loss.beta=0.05"),
        ("loss=ipo", "dpo/loss=ipo?"),
        ("--learning_rate=1", "sft.optimizer.learning_rate=1 or dpo.optimizer.learning_rate=1"),
        ("--data=x.jsonl", "data.path=x.jsonl?"),
        ("--paln", "--plan?"),
    ],
)
def test_a_script_names_what_was_meant(typed: str, meant: str) -> None:
    error = script(DPO, typed, "--plan").error
    assert "did you mean " in error
    assert meant in error


def test_a_setting_of_the_chosen_loss_is_suggested() -> None:
    error = script(DPO, "dpo/loss=simpo", "gamma=1").error
    assert "did you mean dpo.loss.gamma=1?" in error


def test_adapters_are_not_exported_alone_for_a_base_that_is_not_theirs() -> None:
    error = script(DPO, "dpo/lora=lora", "adapters=alone", "--plan", "-q").error
    assert "the adapters of DPO belong to the model after SFT" in error
    assert "use adapters=kept" in error


def test_options_of_hydra_still_work(tmp_path: Path) -> None:
    said = script(DPO, "--cfg", "job", "--package", "dpo.loss", f"store={tmp_path}")
    assert (said.status, said.out.splitlines()[-1]) == (0, "label_smoothing: 0.0")


OWN = """
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pipeline import Step, adopt
from pipeline.dag.artifact import Artifact
from pipeline.experiment import ExperimentConfig, main


class Colour(Enum):
    red = 1
    blue = 2


@dataclass
class Rate:
    \"""A rate.
    Args:
        lr: how fast.
    \"""

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)
    limit: float | None = None

    def __post_init__(self):
        assert self.lr < 10, "lr must be below 10"
        assert self.lr > 0


@dataclass(frozen=True)
class Fixed:
    lr: float = 0.1
    ends: list[int] = field(default_factory=list)
    any: Any = (1, (2, 3))


@dataclass
class Config(ExperimentConfig):
    colour: Colour = Colour.red
    either: int | str = 3
    rate: Rate = field(default_factory=Rate)
    by_name: dict[str, Rate] = field(default_factory=dict)
    rates: list[Rate] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    ends: tuple[int, int] | None = None
    both: tuple[int, int] = (1, 2)
    single: tuple[int] = (1,)
    any: Any = ((1, 2), "a")
    options: dict[str, Any] = field(default_factory=lambda: {"betas": (0.9, 0.95), "sizes": [1]})
    same: tuple[int, int] = "${both}"
    none: tuple[int, int] | None = "${ends}"
    decoded: tuple[int, int] = "${oc.decode:'[1,2]'}"
    again: Rate = "${rate}"
    other: Rate | None = None
    at: dict[int, float] = field(default_factory=lambda: {1: 0.5})
    ready: list[Rate] = field(default_factory=lambda: [Rate()])
    named: dict[str, Rate] = field(default_factory=lambda: {"a": Rate()})
    colours: list[Colour] = field(default_factory=list)
    fast: bool = False
    note: str | None = None
    fixed: dict[str, Fixed] = field(default_factory=dict)
    many: tuple[Fixed, ...] = (Fixed(), Fixed(any=((4,), 5)))
    paints: dict[Colour, list[Colour]] = field(default_factory=lambda: {Colour.red: [Colour.blue]})


def own(cfg: Config) -> dict[str, Step]:
    pairs = (cfg.ends, cfg.both, *(rate.betas for rate in (cfg.rate, cfg.again, *cfg.ready)))
    assert all(pair is None or type(pair) is tuple for pair in pairs), pairs
    assert (cfg.same, cfg.again, cfg.decoded) == (cfg.both, cfg.rate, (1, 2))
    assert cfg.any in (((1, 2), "a"), ((3, 4), "b")), cfg.any
    assert cfg.many == (Fixed(), Fixed(any=((4,), 5))), cfg.many
    assert cfg.options == {"betas": (0.9, 0.95), "sizes": [1]}, cfg.options
    return {"made": adopt("own.py", Artifact)}


if __name__ == "__main__":
    main(own)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("own") / "own.py"
    file.write_text(OWN)
    return file


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        # what Hydra and OmegaConf say
        ("by_name={a: {lrr: 1}}", "Key 'lrr' not in 'Rate'; full_key: by_name.a.lrr"),
        ("rate.limit=x", "Value 'x' of type 'str' could not be converted to Float"),
        ("note=(", "the settings cannot be read: "),
        # what they let pass
        ("note=None", "note=None is a text of four letters; write note=null for none"),
        ("ends=[1,2,3]", "ends=[1,2,3]: it takes 2 values, not 3"),
        ("rates=[{lr: 1},{betas: []}]", "rates[1].betas=[]: it takes 2 values, not 0"),
        ("same=${jobs}", "same=${jobs}: it takes a list, and refers to a single value"),
        ("+ready.0.momentum=1", "+ready[0].momentum: the config has no setting ready[0].momentum"),
        # what a class refuses
        ("rates=[{lr: 10}]", "invalid configuration in rates[0]: lr must be below 10"),
        ("rate.lr=0", "invalid configuration in rate: assert self.lr > 0 fails (own.py, line "),
        # what Hydra meets without a word
        ("other.lr=1", "unknown config key 'other.lr'"),
    ],
)
def test_a_wrong_part_of_a_setting_is_named(typed: str, told: str, own: Path) -> None:
    assert told in script(own, typed, "--plan").error


@pytest.mark.parametrize("typed", ["jobs=range(3,1)", "colour=glob(*)"])
def test_a_sweep_over_no_value_is_told_and_not_passed_over(typed: str, own: Path) -> None:
    assert f"-m: {typed} stands for no job" in script(own, "-m", typed, "--plan").error
