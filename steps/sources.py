"""What an experiment starts from, as its config says it: preference data and a model.

These dataclasses are Hydra groups (``conf/data``, ``conf/model``). Each names exactly one source;
``source()`` turns it into an input that is identified by content or by commit.
"""

import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import fsspec

from pipeline import File, HubDataset, HubModel, Step, TemperError, packaged_file
from steps.data.formats.choice import AUTO, FormatChoice
from steps.data.load.config import LoadConfig
from steps.data.load.mixture import check_weights
from steps.data.load.near import NearDuplicates
from steps.data.load.shards import FileShard, files_at, is_glob, reaching, splits_of


@dataclass(frozen=True)
class Files:
    """Files read one after the other, known by their content and by what they are called.

    A single file, or a folder, is a plain :class:`File`: what a file is called does not matter
    until there is another.
    """

    files: tuple[File, ...]
    names: tuple[str, ...]

    @classmethod
    def matching(cls, pattern: str) -> "Files":
        """The files that a glob pattern matches now, in the order of their names.

        Raises:
            TemperError: it matches none.
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
    """One source of a mixture, read ``repeat`` times over; its ``name`` comes before the labels of
    its rows."""

    name: str
    source: File | Files | HubDataset
    weight: float = 1.0
    format: FormatChoice = field(default_factory=FormatChoice)
    repeat: int = field(default=1, metadata={"before": 1})

    def __post_init__(self) -> None:
        if self.repeat < 1:
            raise ValueError(f"data.mixture.{self.name}.repeat must be at least 1: {self.repeat}")


@dataclass(frozen=True)
class Mixed:
    """Sources in proportion to their weights; the module that draws rows explains ``until``."""

    parts: tuple[MixturePart, ...]
    until: str = "first exhausted"

    def __post_init__(self) -> None:
        check_weights([part.weight for part in self.parts], self.until)


DataSource = File | Files | HubDataset | Mixed
"""What rows are read from."""


def data_at(path: str) -> File | Files:
    """A file or a folder, or the files that a pattern matches: a local path or an fsspec URL.

    Raises:
        TemperError: it is a local file that cannot be read as rows, or has none.
    """
    if is_glob(path):
        return Files.matching(path)
    if os.path.isfile(path):
        Files.matching(path)  # refuses a file of an ending that nothing reads
        if not os.path.getsize(path):
            raise TemperError(f"{path} has no rows: the file is empty")
    return File(path)


def split_files(path: str) -> dict[str, Files]:
    """The files of each split, if `path` is a folder whose files say that there are several.

    Raises:
        TemperError: it cannot be read.
    """
    try:
        with reaching(path):
            filesystem, within = fsspec.url_to_fs(path)
            if is_glob(path) or not filesystem.isdir(within):
                return {}
        named = splits_of(files_at(path, one_split=True))
    except (FileNotFoundError, ValueError) as error:
        raise TemperError(str(error)) from None
    return {} if len(named) < 2 else {split: Files.of(files) for split, files in named.items()}


@dataclass  # not frozen: OmegaConf could not add one to a mapping
class PartData:
    """One source of ``data.mixture``: ``path``, or ``hub`` with ``revision`` and ``split``.

    ``repeat`` reads a small source several times over; then ``deduplicate`` must be off.
    """

    path: str | None = None
    hub: str | None = None
    revision: str | None = None
    split: str = "train"
    weight: float = 1.0
    repeat: int = 1
    format: str = AUTO
    fields: dict[str, str] = field(default_factory=dict)
    system: str | None = None
    turns: str = "alternating"
    pairs: str = "best_vs_worst"
    images: str | None = None

    def __post_init__(self) -> None:
        self.choice()  # refuses what cannot be

    def choice(self) -> FormatChoice:
        named = self.fields or None
        return FormatChoice(self.format, named, self.system, self.turns, self.pairs, self.images)

    def part(self, name: str) -> MixturePart:
        if bool(self.path) == bool(self.hub):
            raise TemperError(f"data.mixture.{name}: set either path or hub")
        source = data_at(self.path) if self.path else self._hub()
        return MixturePart(name, source, self.weight, self.choice(), self.repeat)

    def _hub(self) -> HubDataset:
        return HubDataset(str(self.hub), self.revision or "", self.split)


@dataclass(frozen=True)
class PreferenceData:
    """Preference pairs: files of one's own, a dataset on the Hub, or a mixture.

    Args:
        path: a file, a folder or a glob pattern, local or an fsspec URL; which files can be read
            is said in :mod:`steps.data.load.shards`.
        test_path: held-out pairs; without it ``test_fraction`` of the prompts is held out.
        hub: a Hub dataset, at the commit ``revision``, with its splits.
        mixture: several sources, by name, each with its weight; ``until`` says when it ends.
        test_fraction: of the prompts, held out where nothing else is.
        max_train, max_test: keep only this many pairs, the first ones.
        format: one of :data:`steps.data.formats.choice.FORMATS`, or ``auto``.
        fields: names of fields where they differ from the format's: ``{prompt: question}``.
        system: a system prompt for every conversation that has none.
        turns: turns out of order are refused (``alternating``), ``merged``, or taken (``any``).
        pairs: made of several completions: ``best_vs_worst``, ``adjacent`` or ``all``.
        deduplicate: leave out pairs that an earlier one equals.
        max_dropped: how many rows may be unusable: below 1 a fraction of them, from 1 on a number.
        revision: the commit of the Hub dataset.
        train_split: which split is trained on.
        test_split: which split is held out.
        until: when a mixture ends, as in ``first exhausted``.
        images: the column with the images of each pair; without it none are read.
        near_duplicates: leave out pairs of which so large a share is in an earlier one: 0.8, say.
    """

    path: str | None = None
    test_path: str | None = None
    hub: str | None = None
    revision: str | None = None
    train_split: str = "train_prefs"
    test_split: str = "test_prefs"
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
    deduplicate: bool = False
    max_dropped: float = 0.5
    images: str | None = None
    near_duplicates: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.test_fraction < 1:
            raise ValueError(f"data.test_fraction must be in (0, 1), got {self.test_fraction}")
        check_weights([part.weight for part in self.mixture.values()], self.until)
        repeats = any(part.repeat > 1 for part in self.mixture.values())
        if repeats and (self.deduplicate or self.near_duplicates):
            raise ValueError(
                "data.deduplicate and data.near_duplicates leave out what data.mixture.*.repeat "
                "repeats"
            )
        self.load()

    @property
    def name(self) -> str:
        """For people: the file's or dataset's name."""
        if self.mixture:
            return " + ".join(self.mixture)
        return self.hub or (self.path or "").rstrip("/").rsplit("/", 1)[-1]

    @property
    def title(self) -> str:
        """The data's name in a heading: that of the folder, where a file is called after its
        split."""
        if self.hub or self.mixture:
            return self.name.rpartition("/")[2] if self.hub else self.name
        parts = [part for part in (self.path or "").split("/") if part]
        stem = parts[-1].partition(".")[0] if parts else ""
        return parts[-2] if stem in ("train", "data") and len(parts) > 1 else stem

    def train_source(self) -> DataSource:
        self._check_one()
        if self.mixture:
            parts = tuple(part.part(name) for name, part in self.mixture.items())
            return Mixed(parts, self.until)
        if not self.path:
            return self._hub(self.train_split)
        splits = split_files(self.path)
        return self._split(splits, "train") if splits else data_at(self.path)

    def _split(self, splits: Mapping[str, Files], usual: str) -> Files:
        """The files of the split that is named, else of the usual one."""
        named = self.train_split if usual == "train" else self.test_split
        others = () if usual == "train" else ("validation", "valid", "val", "dev", "eval")
        for split in (named, usual, *others):
            if split in splits:
                return splits[split]
        raise TemperError(
            f"data.path={self.path} holds the splits {', '.join(filter(None, splits))}; name one "
            f"with data.{usual}_split, or files with a pattern"
        )

    def test_source(self) -> DataSource | None:
        """Where held-out pairs come from; ``None``: from the training source, by fraction."""
        self._check_one()
        if self.hub:
            return self._hub(self.test_split)
        if self.test_path:
            return data_at(self.test_path)
        splits = split_files(self.path) if self.path else {}
        return self._split(splits, "test") if splits else None

    def load(self) -> LoadConfig:
        """How rows are read and split; the parts of a mixture have formats of their own.

        Raises:
            ValueError: a setting is out of range.
        """
        named = self.fields or None
        return LoadConfig(
            self.test_fraction,
            self.max_train,
            self.max_test,
            FormatChoice(self.format, named, self.system, self.turns, self.pairs, self.images),
            self.deduplicate,
            self.max_dropped,
            None if self.near_duplicates is None else NearDuplicates(self.near_duplicates),
        )

    def _check_one(self) -> None:
        if sum(map(bool, (self.path, self.hub, self.mixture))) != 1:
            raise TemperError(
                "data: set one of data.path=FILE.jsonl, data.hub=OWNER/NAME and data.mixture"
            )

    def _hub(self, split: str) -> HubDataset:
        return HubDataset(str(self.hub), self.revision or "", split)


def load_rows(load: Callable[..., Step], data: PreferenceData) -> Step:
    """The rows that a config names, read and split by ``load``: ``load_preferences``,
    ``load_conversations``, ``load_prompts`` or ``load_unpaired``."""
    return load(data.train_source(), data.test_source(), data.load())


@dataclass(frozen=True)
class ModelSource:
    """A pretrained model: a local folder or GGUF file, a Hub model, or one inside a package.

    Args:
        path: a Hugging Face folder or a ``.gguf`` file.
        hub: a Hub model, at the commit ``revision``.
        package, file: a GGUF file that an installed Python package ships; ``install`` is the
            command that installs it.
        chat_template: a Jinja file to use instead of the tokenizer's own template, for base models
            that have none.
        license: of the weights, for the card of what is made from them.
        published: its name on a Hub, where it comes from elsewhere, for the same card.
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
        """For people: the model's name."""
        file = (self.path or self.file or "").rstrip("/").rsplit("/", 1)[-1]
        named = self.hub or self.published or file
        return named.removesuffix(".gguf")

    @property
    def title(self) -> str:
        """The model's name in a heading: no owner, and no type of a file's weights."""
        return re.sub(
            r"\.(I?Q\d\w*|B?F\d+)$", "", self.name.rpartition("/")[2], flags=re.IGNORECASE
        )

    def source(self) -> File | HubModel:
        named = [key for key in ("path", "hub", "package") if getattr(self, key)]
        if len(named) != 1:
            given = " and ".join(f"model.{key}" for key in named) or "none"
            raise TemperError(
                f"model: set one of model.path, model.hub, model.package; got {given}"
            )
        if self.path:
            refuse_no_model(File(self.path))
            return File(self.path)
        if self.hub:
            return HubModel(self.hub, self.revision or "")
        if not self.file:
            raise TemperError("model: model.package needs model.file, the file's name within it")
        return packaged_file(str(self.package), self.file, self.install or "pip install")

    def template(self) -> File | None:
        return File(self.chat_template) if self.chat_template else None


def refuse_no_model(source: File | HubModel, **_: object) -> None:
    """Refuse what cannot be a model: called with the arguments of ``import_model``, before anything
    reads the files. What lies behind a URL is looked at when it is read.

    Raises:
        TemperError: it is neither a Hugging Face folder nor a ``.gguf`` file.
    """
    if isinstance(source, HubModel) or "://" in source.url or not source.url:
        return
    path = Path(source.url)
    want = "model.path names a Hugging Face model folder or a .gguf file"
    if not path.exists():
        if _HUB_NAME.fullmatch(source.url):
            raise TemperError(
                f"model {source.url} is no folder here (in {Path.cwd()}); if that is its name on "
                f"the Hub: model=hub model.hub={source.url}, in Python HubModel({source.url!r})"
            )
        return  # the input says so itself
    if path.is_file() and path.suffix != ".gguf":
        raise TemperError(f"model {source.url} is neither a folder nor a .gguf file; {want}")
    if path.is_dir() and not any((path / name).is_file() for name in _CONFIGS):
        found = _models_in(path)
        meant = f"; did you mean {' or '.join(found)}?" if found else f"; {want}"
        raise TemperError(f"model {source.url} is no model: it has no config.json{meant}")
    if path.is_dir() and (lacks := _lacks(path)):
        raise TemperError(
            f"model {source.url} is not whole: it has {lacks}; copy the missing files into it from "
            "the model that it was made from, or name another folder with model.path"
        )


def _lacks(folder: Path) -> str:
    """What of a model a folder does not hold, by the names of its files."""
    names = [name.lower() for name in os.listdir(folder)]
    if not any(name.endswith(_WEIGHTS) for name in names):
        return "no weights (model.safetensors)"
    if not any("token" in n or "vocab" in n or n.endswith(".model") for n in names):
        return "no tokenizer (tokenizer.json)"
    return ""


_WEIGHTS = (".safetensors", ".bin", ".index.json", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_CONFIGS = ("config.json", "adapter_config.json")
_MOST_LOOKED_AT = 200


def _models_in(folder: Path) -> list[str]:
    """The first models that lie directly in a folder."""
    try:
        with os.scandir(folder) as items:
            paths = sorted(Path(item.path) for item in itertools.islice(items, _MOST_LOOKED_AT))
        return [
            str(path)
            for path in paths
            if path.suffix == ".gguf" or any((path / name).is_file() for name in _CONFIGS)
        ][:3]
    except OSError:
        return []
