"""What an experiment starts from, as its config says it: preference data and a model.

These dataclasses are Hydra groups (``conf/data``, ``conf/model``). Each names exactly one source;
``source()`` turns it into an input that is identified by content or by commit.
"""

from dataclasses import dataclass, field

import fsspec

from pipeline import File, HubDataset, HubModel, TemperError, packaged_file
from steps.data.formats.registry import AUTO, FormatChoice
from steps.data.ledger import check_max_dropped
from steps.data.mixture import check_weights
from steps.data.sources import files_at, is_pattern


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
        return cls(tuple(File(file.url) for file in found), tuple(file.name for file in found))


@dataclass(frozen=True)
class MixturePart:
    """One source of a mixture; its ``name`` comes before the labels of its rows."""

    name: str
    source: File | Files | HubDataset
    weight: float = 1.0
    format: FormatChoice = field(default_factory=FormatChoice)


@dataclass(frozen=True)
class Mixed:
    """Sources in proportion to their weights; see :mod:`steps.data.mixture` for ``until``."""

    parts: tuple[MixturePart, ...]
    until: str = "first exhausted"

    def __post_init__(self) -> None:
        check_weights([part.weight for part in self.parts], self.until)


DataSource = File | Files | HubDataset | Mixed
"""What rows are read from."""


def data_at(path: str) -> File | Files:
    """A file or a folder, or the files that a pattern matches: a local path or an fsspec URL."""
    return Files.matching(path) if is_pattern(fsspec.url_to_fs(path)[1]) else File(path)


@dataclass  # not frozen: OmegaConf could not add one to a mapping
class PartData:
    """One source of ``data.mixture``: ``path``, or ``hub`` with ``revision`` and ``split``."""

    path: str | None = None
    hub: str | None = None
    revision: str | None = None
    split: str = "train"
    weight: float = 1.0
    format: str = AUTO
    fields: dict[str, str] = field(default_factory=dict)
    system: str | None = None

    def __post_init__(self) -> None:
        self.choice()  # refuses what cannot be

    def choice(self) -> FormatChoice:
        return FormatChoice(self.format, self.fields or None, self.system)

    def part(self, name: str) -> MixturePart:
        if bool(self.path) == bool(self.hub):
            raise TemperError(f"data.mixture.{name}: set either path or hub")
        source = data_at(self.path) if self.path else self._hub()
        return MixturePart(name, source, self.weight, self.choice())

    def _hub(self) -> HubDataset:
        return HubDataset(str(self.hub), self.revision or "", self.split)


@dataclass(frozen=True)
class PreferenceData:
    """Preference pairs: files of one's own, a dataset on the Hub, or a mixture.

    Args:
        path: a file, a folder or a glob pattern, local or an fsspec URL; which files can be read
            is said in :mod:`steps.data.sources`.
        test_path: held-out pairs; without it ``test_fraction`` of the prompts is held out.
        hub: a Hub dataset, at the commit ``revision``, with its splits.
        mixture: several sources, by name, each with its weight; ``until`` says when it ends.
        test_fraction: of the prompts, held out where nothing else is.
        max_train, max_test: keep only this many pairs, the first ones.
        format: one of :data:`steps.data.formats.registry.FORMATS`, or ``auto``.
        fields: names of fields where they differ from the format's: ``{prompt: question}``.
        system: a system prompt for every conversation that has none.
        deduplicate: leave out pairs that an earlier one equals.
        max_dropped: how many rows may be unusable: below 1 a fraction of them, from 1 on a number.
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
    deduplicate: bool = False
    max_dropped: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.test_fraction < 1:
            raise ValueError(f"data.test_fraction must be in (0, 1), got {self.test_fraction}")
        for name in ("max_train", "max_test"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ValueError(f"data.{name} must be at least 1 or null, got {limit}")
        check_max_dropped(self.max_dropped)
        check_weights([part.weight for part in self.mixture.values()], self.until)
        self.choice()

    @property
    def name(self) -> str:
        """For people: the file's or dataset's name."""
        if self.mixture:
            return " + ".join(self.mixture)
        return self.hub or (self.path or "").rstrip("/").rsplit("/", 1)[-1]

    def train_source(self) -> DataSource:
        self._check_one()
        if self.mixture:
            parts = tuple(part.part(name) for name, part in self.mixture.items())
            return Mixed(parts, self.until)
        return data_at(self.path) if self.path else self._hub(self.train_split)

    def test_source(self) -> DataSource | None:
        """Where held-out pairs come from; ``None``: from the training source, by fraction."""
        self._check_one()
        if self.hub:
            return self._hub(self.test_split)
        return data_at(self.test_path) if self.test_path else None

    def choice(self) -> FormatChoice:
        """The format of the rows; a mixture's parts have their own."""
        return FormatChoice(self.format, self.fields or None, self.system)

    def _check_one(self) -> None:
        if sum(map(bool, (self.path, self.hub, self.mixture))) != 1:
            raise TemperError(
                "data: set one of data.path=FILE.jsonl, data.hub=OWNER/NAME and data.mixture"
            )

    def _hub(self, split: str) -> HubDataset:
        return HubDataset(str(self.hub), self.revision or "", split)


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
    """

    path: str | None = None
    hub: str | None = None
    revision: str | None = None
    package: str | None = None
    file: str | None = None
    install: str | None = None
    chat_template: str | None = None
    license: str | None = None

    @property
    def name(self) -> str:
        """For people: the model's name."""
        named = self.hub or (self.path or self.file or "").rstrip("/").rsplit("/", 1)[-1]
        return named.removesuffix(".gguf")

    def source(self) -> File | HubModel:
        named = [key for key in ("path", "hub", "package") if getattr(self, key)]
        if len(named) != 1:
            given = " and ".join(f"model.{key}" for key in named) or "none"
            raise TemperError(
                f"model: set one of model.path, model.hub, model.package; got {given}"
            )
        if self.path:
            return File(self.path)
        if self.hub:
            return HubModel(self.hub, self.revision or "")
        if not self.file:
            raise TemperError("model: model.package needs model.file, the file's name within it")
        return packaged_file(str(self.package), self.file, self.install or "pip install")

    def template(self) -> File | None:
        return File(self.chat_template) if self.chat_template else None
