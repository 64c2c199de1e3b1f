"""The tools, each used as its own documentation shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Contender:
    """
    Attributes:
        folder: the folder with its files in ``contenders/``.
        package: what pip installs; empty for the environment of this benchmark.
        commands: run in the project, one after the other.
        setup: commands before the first run.
        replaced: texts of its files, and what stands in their place.
        note: how it is used, and what is unfair to it.
    """

    name: str
    folder: str
    package: str
    commands: tuple[str, ...]
    note: str
    setup: tuple[str, ...] = ()
    replaced: Mapping[str, str] = field(default_factory=dict)


SCRIPT = ("python main.py",)
DVC = ("dvc repro -q", "python publish.py")
SNAKEMAKE = ("snakemake -c1 -q all", "python publish.py")
EACH_FILE = '*sorted(map(str, __import__("pathlib").Path("lab").rglob("*.py")))'

CONTENDERS = [
    Contender("Temper", "temper", "", SCRIPT, "files are `File` arguments"),
    Contender(
        "joblib",
        "joblib",
        "joblib",
        SCRIPT,
        "`Memory.cache` of each step; files are read first and passed as texts",
    ),
    Contender(
        "redun",
        "redun",
        "redun",
        SCRIPT,
        "each step a `@task`, without versions; files are read first and passed as texts",
    ),
    Contender(
        "exca",
        "exca",
        "exca",
        SCRIPT,
        "`TaskInfra` with a version that nobody raises: its answer to code is that number",
    ),
    Contender(
        "datasets",
        "datasets",
        "datasets",
        SCRIPT,
        "`Dataset.map` for rows and tokens; it has no cache for training, which runs every time",
    ),
    Contender(
        "DVC",
        "dvc",
        "dvc",
        DVC,
        "stages depend on data and on `lab/steps.py`, as in its tutorial",
        ("dvc init --no-scm -q",),
        {"CODE": "lab/steps.py"},
    ),
    Contender(
        "DVC, all code",
        "dvc",
        "dvc",
        DVC,
        "every stage depends on all of `lab/`",
        ("dvc init --no-scm -q",),
        {"CODE": "lab"},
    ),
    Contender(
        "Snakemake",
        "snakemake",
        "snakemake",
        SNAKEMAKE,
        "rules depend on data and on `lab/steps.py`",
        replaced={"[CODE]": '["lab/steps.py"]'},
    ),
    Contender(
        "Snakemake, all code",
        "snakemake",
        "snakemake",
        SNAKEMAKE,
        "every rule depends on all files of `lab/`",
        replaced={"[CODE]": f"[{EACH_FILE}]"},
    ),
]
