"""The data and the model that an experiment starts from, as config dataclasses.

These dataclasses are Hydra groups (``conf/data``, ``conf/model``). Each names exactly one source,
and turns it into an input of a step, which its content or its commit identifies.
"""

import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fsspec

from pipeline import (
    File,
    HubDataset,
    HubModel,
    Input,
    Step,
    TemperError,
    execution_detail,
    packaged_file,
)
from pipeline.base.user_cache import cache_folder
from pipeline.store.catalog import Catalog
from pipeline.store.layout import open_store
from pipeline.store.manifest import Manifest
from pipeline.store.names.recorded import named_artifact, recorded
from steps.data.formats.choice import AUTO, FormatChoice
from steps.data.load.config import LoadConfig
from steps.data.load.mixture import check_weights
from steps.data.load.near_duplicates import NearDuplicates
from steps.data.load.shards import FileShard, files_at, is_glob, reaching
from steps.data.load.split_names import USUALLY_HELD_OUT, splits_of
from steps.data.rows.arrow_copy import arrow_copy
from steps.models.config import (
    ADAPTER_ALONE,
    ADAPTER_FILE,
    Dtype,
    Published,
    has_adapters_alone,
)
from steps.models.folder_check import fault_of, has_chat_template


@dataclass(frozen=True)
class Files:
    """Several files, read in order. Their contents and their names identify them.

    A single file or a folder is a plain :class:`File`, whose name does not matter: names
    distinguish rows only if there are several files.
    """

    files: tuple[File, ...]
    names: tuple[str, ...]

    @classmethod
    def matching(cls, pattern: str) -> "Files":
        """The files that a glob pattern matches now, sorted by name.

        Raises:
            TemperError: the pattern matches no files.
        """
        try:
            found = files_at(pattern)
        except (FileNotFoundError, ValueError) as error:
            raise TemperError(str(error)) from None
        return cls.of(found)

    @classmethod
    def of(cls, found: Sequence[FileShard]) -> "Files":
        return cls(tuple(File(file.url) for file in found), tuple(file.name for file in found))


@dataclass(frozen=True)
class MixturePart:
    """One source of a mixture, which is read ``repeat`` times. ``name`` prefixes the labels of its
    rows."""

    name: str
    source: File | Files | HubDataset
    weight: float = 1.0
    format: FormatChoice = field(default_factory=FormatChoice)
    repeat: int = field(default=1, metadata={"before": 1})

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", as_sources(source=self.source)["source"])
        _check_repeat(self.repeat, f"data.mixture.{self.name}.")


def _check_repeat(repeat: object, place: str = "") -> None:
    if type(repeat) is not int or repeat < 1:
        raise ValueError(f"{place}repeat must be a whole number of at least 1, got {repeat!r}")


@dataclass(frozen=True)
class Mixed:
    """Sources mixed in proportion to their weights. :mod:`steps.data.load.mixture` explains
    ``until``."""

    parts: tuple[MixturePart, ...]
    until: str = "first exhausted"

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a mixture has at least one part, got none")
        check_weights([(part.name, part.weight) for part in self.parts], self.until)
        names = [part.name for part in self.parts]
        if len(names) > 1 and ("" in names or len(set(names)) < len(names)):
            raise ValueError(f"the parts of a mixture need names that differ, got {names}")


DataSource = File | Files | HubDataset | Mixed
"""A source of rows. A ``datasets.Dataset`` in its place becomes a :class:`File`."""


@execution_detail
def as_sources(**values: Any) -> dict[str, Any]:
    """The values, with a copy of its rows as a :class:`File` for each data set of ``datasets``.

    Raises:
        TemperError: one of them has several splits, is read as it comes, or is transformed only
            when it is read.
    """
    if (library := sys.modules.get("datasets")) is None:
        return values
    made = {}
    for name, value in values.items():
        if isinstance(value, library.DatasetDict | library.IterableDatasetDict):
            raise TemperError(
                f"{name} is a {type(value).__name__} with the splits {', '.join(value)}; pass one "
                f"of them, as in {name}=data[{next(iter(value), 'train')!r}]"
            )
        if isinstance(value, library.IterableDataset):
            raise TemperError(
                f"{name} is an IterableDataset, whose rows are known only once they are read; pass "
                "HubDataset(REPOSITORY, REVISION, SPLIT), File(PATH), or a Dataset (load_dataset "
                "without streaming=True, or Dataset.from_generator)"
            )
        if isinstance(value, library.Dataset):
            if value.format["type"] == "custom":
                raise TemperError(
                    f"{name} has a transform, which is applied to rows only when they are read; "
                    "apply it with .map"
                )
            value = File(str(arrow_copy(value, cache_folder() / "rows")))
        made[name] = value
    return made


def data_at(path: str) -> File | Files:
    """A file or a folder, or the files that a glob pattern matches.

    Args:
        path: a local path or pattern, or an fsspec URL.

    Raises:
        TemperError: the path is a local file that is empty or of an unknown format, or a page.
    """
    _refuse_no_data(path)
    if os.path.isfile(os.path.join(path, "config.json")) and not fault_of(Path(path)):
        raise TemperError(f"{path} is a model and no data: model=local model.path={path}")
    if is_glob(path):
        return Files.matching(path)
    if os.path.isfile(path):
        Files.matching(path)  # refuses a file whose suffix no reader knows
        if not os.path.getsize(path):
            raise TemperError(f"{path} has no rows: the file is empty")
    return File(path)


def _refuse_no_data(path: str) -> None:
    """Refuse what is neither a path nor the URL of an object, and files that cannot be found, as
    their folder is closed. To read one file, nobody need list its folder."""
    if page := _DATA_PAGE.fullmatch(path):
        raise TemperError(
            f"{path} is a page of the Hub; use data.path=null data.hub={page[1]}, in Python "
            f"HubDataset({page[1]!r}, revision, split)"
        )
    scheme = path.partition("://")[0].rpartition("::")[2] if "://" in path else "file"
    if scheme not in fsspec.available_protocols():
        raise TemperError(
            f"{path}: there is no {scheme}://; name a file, or an object as in gs:// or s3://"
        )
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    right = os.X_OK if os.path.isfile(path) else os.R_OK | os.X_OK
    if os.path.isdir(folder) and not os.access(folder, right, effective_ids=_KNOWS_EFFECTIVE_IDS):
        raise TemperError(
            f"{path} cannot be read: this user may not list {folder}; let this user (chmod), or "
            "copy the data"
        )


_KNOWS_EFFECTIVE_IDS = os.access in os.supports_effective_ids
_DATA_PAGE = re.compile(
    r"https?://huggingface\.co/datasets/([\w.-]+(?:/[\w.-]+)?)/?(?:(?:tree|viewer).*)?"
)


def split_files(path: str) -> dict[str, Files]:
    """The files of each split if `path` is a folder whose file names show several splits; else
    an empty dict.

    Raises:
        TemperError: the folder cannot be read.
    """
    _refuse_no_data(path)
    try:
        with reaching(path):
            filesystem, within = fsspec.url_to_fs(path)
            # Who may read an object need not be allowed to list what lies beside it.
            if is_glob(path) or filesystem.isfile(within) or not filesystem.isdir(within):
                return {}
        named = splits_of(files_at(path, one_split=True))
    except (FileNotFoundError, ValueError) as error:
        raise TemperError(str(error)) from None
    return {} if len(named) < 2 else {split: Files.of(files) for split, files in named.items()}


@dataclass  # not frozen: OmegaConf cannot add a frozen dataclass to a mapping
class PartData:
    """One source of ``data.mixture``: ``path``, or ``hub`` with ``revision`` and ``split``, and
    with ``name``, ``data_dir`` or ``data_files`` as in :class:`PreferenceData`.

    ``repeat`` reads a small source several times; ``duplicates`` must then be ``keep``.
    """

    path: str | None = None
    hub: str | None = None
    revision: str | None = None
    split: str = "train"
    name: str | None = None
    data_dir: str | None = None
    data_files: Any = None
    weight: float = 1.0
    repeat: int = 1
    format: str = AUTO
    fields: dict[str, str] = field(default_factory=dict)
    system: str | None = None
    turns: str = "alternating"
    pairs: str = "best_vs_worst"
    images: str | None = None

    def __post_init__(self) -> None:
        _check_repeat(self.repeat)
        self.choice()  # raises an error for an invalid combination of settings

    def choice(self) -> FormatChoice:
        named = self.fields or None
        return FormatChoice(self.format, named, self.system, self.turns, self.pairs, self.images)

    def part(self, name: str) -> MixturePart:
        if bool(self.path) == bool(self.hub):
            raise TemperError(f"data.mixture.{name}: set either path or hub")
        source = _hub(self, self.split, f"data.mixture.{name}") or data_at(str(self.path))
        return MixturePart(name, source, self.weight, self.choice(), self.repeat)


_OF_HUB = ("name", "data_dir", "data_files")
"""Settings that choose within a data set of the Hub, as in ``datasets.load_dataset``."""


def _hub(data: "PartData | PreferenceData", split: str, where: str) -> HubDataset | None:
    """A split of the Hub's data set that ``data`` names; ``None`` if it names none.

    Raises:
        TemperError: a setting chooses within a data set of the Hub, and none is named.
    """
    chosen = {name: value for name in _OF_HUB if (value := getattr(data, name)) is not None}
    if not data.hub and (chosen or data.revision):
        raise TemperError(
            f"{where}.{next(iter(chosen), 'revision')} chooses within a data set of the Hub, and "
            f"{where}.hub names none; name it, or leave the setting out"
        )
    return HubDataset(data.hub, data.revision or "", split, **chosen) if data.hub else None


@dataclass(frozen=True)
class PreferenceData:
    """Rows from your own files, from a dataset on the Hub, or from a mixture.

    Args:
        path: a file, a folder or a glob pattern, as a local path or an fsspec URL.
            :mod:`steps.data.load.shards` lists the file formats.
        test_path: held-out rows; without it, the share ``test_fraction`` of prompts is held out.
        hub: a Hub dataset, at the commit ``revision``, with its splits.
        mixture: several sources by name, each with its weight; ``until`` sets when reading ends.
        test_fraction: the share of prompts that is held out for evaluation if the data has no test
            split; 0: none. An experiment that evaluates nothing holds out none.
        max_train, max_test: the most rows of a split; the first ones are kept.
        format: one of :data:`steps.data.formats.by_name.FORMATS`, or ``auto``.
        fields: the names of fields that differ from the format's: ``{prompt: question}``.
        system: a system prompt for every conversation that has none.
        turns: whether turns out of order are refused (``alternating``), ``merged``, or accepted
            (``any``).
        pairs: for preference pairs, which are made from several completions: ``best_vs_worst``,
            ``adjacent`` or ``all``.
        duplicates: ``drop`` leaves out rows that equal an earlier one, and of preference pairs both
            of two that contradict each other (the sides exchanged); ``keep`` only counts these.
        max_dropped: how many rows may be unusable: below 1 a fraction of the rows, from 1 on a
            number of rows.
        revision: the commit of the Hub dataset.
        name: the config of the Hub dataset, such as ``main``, if it has several.
        data_dir: the folder of the Hub dataset that is read.
        data_files: the files of the Hub dataset that are read: a path or pattern, or a list, or
            such by split.
        train_split: the split for training.
        test_split: the split that is held out; null where a Hub dataset has none.
        until: when a mixture ends, as in ``first exhausted``.
        images: the column with the images of each row; without it none are read.
        near_duplicates: leave out rows of which so large a share is in an earlier one: 0.8, say.
        workers: the number of processes that read; 0: one for each core. It changes no result.
    """

    path: str | None = None
    test_path: str | None = None
    hub: str | None = None
    revision: str | None = None
    name: str | None = None
    data_dir: str | None = None
    data_files: Any = None
    train_split: str = "train_prefs"
    test_split: str | None = "test_prefs"
    mixture: dict[str, PartData] = field(default_factory=dict)
    until: str = "first exhausted"
    test_fraction: float = 0.1
    max_train: int | None = None
    max_test: int | None = None
    format: str = AUTO
    fields: dict[str, str] = field(default_factory=dict)
    system: str | None = None
    turns: str = "alternating"
    pairs: str = "best_vs_worst"
    duplicates: str = "keep"
    max_dropped: float = 0.5
    images: str | None = None
    near_duplicates: float | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            raise ValueError(f"data.test_fraction must be in [0, 1), got {self.test_fraction}")
        check_weights([(name, part.weight) for name, part in self.mixture.items()], self.until)
        repeats = any(part.repeat > 1 for part in self.mixture.values())
        if repeats and (self.duplicates == "drop" or self.near_duplicates):
            raise ValueError(
                "data.duplicates=drop and data.near_duplicates leave out what "
                "data.mixture.*.repeat repeats"
            )
        self.load()

    @property
    def called(self) -> str:
        """The name of the file or dataset, for display."""
        if self.mixture:
            return " + ".join(self.mixture)
        return self.hub or (self.path or "").rstrip("/").rsplit("/", 1)[-1]

    @property
    def title(self) -> str:
        """The data's name for a heading. A file that is named after its split gives the name of
        its folder."""
        if self.hub or self.mixture:
            return self.called.rpartition("/")[2] if self.hub else self.called
        parts = [part for part in (self.path or "").split("/") if part]
        stem = parts[-1].partition(".")[0] if parts else ""
        return parts[-2] if stem in ("train", "data") and len(parts) > 1 else stem

    def train_source(self) -> DataSource:
        self._check_one()
        if of_hub := _hub(self, self.train_split, "data"):
            return of_hub
        if self.mixture:
            parts = tuple(part.part(name) for name, part in self.mixture.items())
            return Mixed(parts, self.until)
        splits = split_files(str(self.path))
        return self._split(splits, "train") if splits else data_at(str(self.path))

    def _split(self, splits: Mapping[str, Files], usual: str) -> Files:
        """The files of the configured split, or else of a split with a usual name.

        Raises:
            TemperError: the folder has neither.
        """
        named = self.train_split if usual == "train" else self.test_split
        others = () if usual == "train" else USUALLY_HELD_OUT
        for split in filter(None, (named, usual, *others)):
            if split in splits:
                return splits[split]
        raise TemperError(
            f"data.path={self.path} holds the splits {', '.join(filter(None, splits))}; name one "
            f"with data.{usual}_split, or files with a pattern"
        )

    def test_source(self) -> DataSource | None:
        """The source of held-out pairs. ``None`` means a fraction of the training source."""
        self._check_one()
        if self.test_path:
            return data_at(self.test_path)
        if self.hub:
            return _hub(self, self.test_split, "data") if self.test_split else None
        splits = split_files(self.path) if self.path else {}
        return self._split(splits, "test") if splits else None

    def load(self) -> LoadConfig:
        """How rows are read and split. Each part of a mixture has its own format.

        Raises:
            ValueError: a setting is out of range.
        """
        named = self.fields or None
        return LoadConfig(
            self.test_fraction,
            self.max_train,
            self.max_test,
            FormatChoice(self.format, named, self.system, self.turns, self.pairs, self.images),
            self.duplicates,
            self.max_dropped,
            None if self.near_duplicates is None else NearDuplicates(self.near_duplicates),
            self.workers,
        )

    def _check_one(self) -> None:
        if sum(map(bool, (self.path, self.hub, self.mixture))) != 1:
            raise TemperError(
                "data: set one of data.path=FILE.jsonl, data.hub=OWNER/NAME and data.mixture"
            )


def load_rows(load: Callable[..., Step], data: PreferenceData, needs_held_out: bool = True) -> Step:
    """A step that reads and splits the rows that a config names; or a result of the store, if
    ``data.path`` is its name.

    Args:
        load: ``load_preferences``, ``load_conversations``, ``load_prompts`` or ``load_unpaired``.
        needs_held_out: whether the experiment reads held-out rows; without that, a share is not
            held out.

    Raises:
        TemperError: it does, and the config holds out none.
    """
    function: Any = getattr(load, "func", load)  # of a `partial`, which has settings
    if isinstance(made := recorded(data.path or "", function.makes), Step):
        return made
    train, test = data.train_source(), data.test_source()
    if needs_held_out and test is None and not data.test_fraction:
        raise TemperError(
            "data.test_fraction=0 holds out no row, and held-out rows are evaluated here; hold out "
            "a share, or name a file with data.test_path"
        )
    kept = data if needs_held_out else replace(data, test_fraction=0.0)
    return load(train, test, kept.load())


def load_model(load: Any, model: "ModelSource", dtype: Dtype) -> Step | Input:
    """The model that a config names: a step that imports it; or the result of an earlier run, as it
    is, if ``model.path`` is its name and no other chat template is given.

    Args:
        load: ``import_model``.
    """
    if model.chat_template is None and (made := recorded(model.path or "", load.makes, _rests)):
        return made
    about = Published(model.name, model.license)
    return load(model.source(), model.template(), dtype=dtype, about=about)


def load_teacher(load: Any, teacher: "ModelSource", dtype: Dtype) -> Step | Input:
    """As `load_model`.

    Raises:
        TemperError: the config names no teacher.
    """
    if not (teacher.path or teacher.hub):
        raise TemperError("set teacher.path to a folder, or teacher.hub and teacher.revision")
    return load_model(load, teacher, dtype)


_MODEL = "steps.kinds:Model"


def _rests(made: Manifest, part: str | None) -> bool:
    """Whether a model is adapters alone."""
    return has_adapters_alone(name for name in made.files_of(part) if "/" not in name)


def _imported(made: Manifest | None) -> Published:
    """What was imported for an artifact of the present store, or for one above it."""
    catalog = Catalog(open_store(None))
    while made is not None:
        if isinstance(name := made.metrics.get("source"), str):
            return Published(name, made.metrics.get("license"))
        above = [catalog.latest(entry.step, entry.key) for entry in made.inputs]
        models = (m for m in above if m is not None and m.kind in (made.kind, _MODEL))
        made = next(models, None)
    return Published()


@dataclass(frozen=True)
class ModelSource:
    """A pretrained model: a local folder or GGUF file, a Hub model, or a file in a package.

    Args:
        path: a Hugging Face folder or a ``.gguf`` file; or an artifact of the store, which is used
            as it is: ``EXPERIMENT/RESULT``, ``STEP@KEY`` or a tag.
        hub: a Hub model, at the commit ``revision``.
        package, file: a GGUF file inside an installed Python package; ``install`` is the command
            that installs the package.
        chat_template: a Jinja file that replaces the tokenizer's own chat template; base models
            often have none.
        license: the license of the weights, for the card of models trained from them.
        published: the model's name on the Hub if it was not loaded from there, for the same card.
        revision: the commit of the Hub model.
        install: the command that installs the package.
    """

    path: str | None = None
    hub: str | None = None
    revision: str | None = None
    package: str | None = None
    file: str | None = None
    install: str | None = None
    chat_template: str | None = None
    published: str | None = None
    license: str | None = None

    @property
    def name(self) -> str:
        """The model's name, for display; of a result of the store, that of what was imported."""
        if made := named_artifact(self.path or ""):
            return _imported(made).name or made.name
        file = (self.path or self.file or "").rstrip("/").rsplit("/", 1)[-1]
        named = self.hub or self.published or file
        return named.removesuffix(".gguf")

    @property
    def title(self) -> str:
        """The model's name for a heading, without its owner and without a GGUF file's type."""
        return re.sub(
            r"\.(I?Q\d\w*|B?F\d+)$", "", self.name.rpartition("/")[2], flags=re.IGNORECASE
        )

    def source(self) -> File | HubModel:
        named = [key for key in ("path", "hub", "package") if getattr(self, key)]
        if len(named) != 1:
            given = " and ".join(f"model.{key}" for key in named) or "none"
            group = "; choose model=local or model=hub with it" if "package" in named[1:] else ""
            raise TemperError(
                f"model: set one of model.path, model.hub, model.package; got {given}{group}"
            )
        if self.path:
            found = File(self.path)
            if found.url != self.path and (Path(found.url) / "model" / "config.json").is_file():
                found = File(f"{found.url}/model")  # of online training, with a tag
            refuse_no_model(found, self.template())
            return found
        if self.hub:
            return HubModel(self.hub, self.revision or "")
        if not self.file:
            raise TemperError("model: model.package needs model.file, the file's name within it")
        instead = "name a model (model=local model.path=MODEL; temper run: --model), or "
        return packaged_file(str(self.package), self.file, self.install or "pip install", instead)

    def template(self) -> File | None:
        if self.chat_template and os.path.isdir(self.chat_template):
            raise TemperError(
                f"model.chat_template={self.chat_template} is a folder; name a file in it"
            )
        return File(self.chat_template) if self.chat_template else None


def refuse_no_model(
    source: File | HubModel, chat_template: File | None = None, **_: object
) -> None:
    """Refuse a local path that is not a model, when a plan is made and before any step runs.

    It takes the arguments of ``import_model``. A URL is only checked when ``import_model`` reads
    it.

    Raises:
        TemperError: the path is neither a Hugging Face folder nor a ``.gguf`` file, or the folder
            has no chat template and none is given.
    """
    if isinstance(source, HubModel) or not source.url:
        return
    if page := _HUB_PAGE.fullmatch(source.url):
        raise TemperError(f"{source.url} is a page of the Hub; use model=hub model.hub={page[1]}")
    if "://" in source.url:
        return
    path = Path(source.url)
    want = "model.path names a Hugging Face model folder or a .gguf file"
    if not path.exists():
        if source.url.startswith("~"):
            source.identity()  # it says what to write instead
        if _HUB_NAME.fullmatch(source.url):
            raise TemperError(
                f"model {source.url} is no folder here (in {Path.cwd()}); if that is its name on "
                f"the Hub: model=hub model.hub={source.url}, in Python HubModel({source.url!r})"
            )
        raise TemperError(
            f"model {source.url} does not exist; check the path (now in {Path.cwd()}), or name a "
            "model of the Hub with its owner: model=hub model.hub=OWNER/NAME"
        )
    if path.is_file() and path.suffix != ".gguf":
        raise TemperError(f"model {source.url} is neither a folder nor a .gguf file; {want}")
    if path.is_dir() and not (path / "config.json").is_file():
        if (path / ADAPTER_FILE).is_file():
            raise TemperError(f"model {source.url} {ADAPTER_ALONE}")
        found = _models_in(path)
        meant = f"; did you mean {' or '.join(found)}?" if found else f"; {want}"
        raise TemperError(f"model {source.url} is no model: it has no config.json{meant}")
    if path.is_dir() and (fault := fault_of(path)):
        raise TemperError(
            f"model {source.url} cannot be used: it {fault}; copy its files again from the model "
            "it was made from, or name another folder with model.path"
        )
    if path.is_dir() and chat_template is None and not has_chat_template(path):
        raise TemperError(
            f"model {source.url} has no chat template, as base models have none; name a Jinja file "
            "with model.chat_template, or take the chat model"
        )
    if path.is_file() and not _is_gguf(path):
        raise TemperError(
            f"model {source.url} is no GGUF file, whatever its name; download it again"
        )


def _is_gguf(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"GGUF"


_HUB_PAGE = re.compile(r"https?://huggingface\.co/([\w.-]+(?:/[\w.-]+)?)/?(?:tree/.*)?")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_MOST_LOOKED_AT = 200


def _models_in(folder: Path) -> list[str]:
    """Up to three models directly inside a folder, or in a snapshot of the Hub's cache."""
    try:
        with os.scandir(folder) as items:
            paths = sorted(Path(item.path) for item in itertools.islice(items, _MOST_LOOKED_AT))
        if folder / "snapshots" in paths and folder / "blobs" in paths:
            return _models_in(folder / "snapshots")
        return [
            str(path)
            for path in paths
            if path.suffix == ".gguf" or (path / "config.json").is_file()
        ][:3]
    except OSError:
        return []
