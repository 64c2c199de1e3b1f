"""What an experiment starts from, as its config says it: preference data and a model.

These dataclasses are Hydra groups (``conf/data``, ``conf/model``). Each names exactly one source;
``source()`` turns it into an input that is identified by content or by commit.
"""

from dataclasses import dataclass

from pipeline import File, HubDataset, HubModel, TemperError, packaged_file


@dataclass(frozen=True)
class PreferenceData:
    """Preference pairs: files of one's own, or a dataset on the Hub.

    Args:
        path: a ``.jsonl[.gz|.zst]`` or ``.parquet`` file, local or an fsspec URL.
        test_path: held-out pairs; without it ``test_fraction`` of the prompts is held out.
        hub: a Hub dataset, at the commit ``revision``, with its splits.
        max_train, max_test: keep only this many pairs, the first ones.
    """

    path: str | None = None
    test_path: str | None = None
    hub: str | None = None
    revision: str | None = None
    train_split: str = "train_prefs"
    test_split: str = "test_prefs"
    test_fraction: float = 0.1
    max_train: int | None = None
    max_test: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.test_fraction < 1:
            raise ValueError(f"data.test_fraction must be in (0, 1), got {self.test_fraction}")
        for name in ("max_train", "max_test"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ValueError(f"data.{name} must be at least 1 or null, got {limit}")

    @property
    def name(self) -> str:
        """For people: the file's or dataset's name."""
        return self.hub or (self.path or "").rsplit("/", 1)[-1]

    def train_source(self) -> File | HubDataset:
        if self.path and not self.hub:
            return File(self.path)
        return self._hub(self.train_split)

    def test_source(self) -> File | HubDataset | None:
        """Where held-out pairs come from; ``None``: from the training source, by fraction."""
        if self.path and not self.hub:
            return File(self.test_path) if self.test_path else None
        return self._hub(self.test_split)

    def _hub(self, split: str) -> HubDataset:
        if not self.hub or self.path:
            raise TemperError("data: set either data.path=FILE.jsonl or data.hub=OWNER/NAME")
        return HubDataset(self.hub, self.revision or "", split)


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
    """

    path: str | None = None
    hub: str | None = None
    revision: str | None = None
    package: str | None = None
    file: str | None = None
    install: str | None = None
    chat_template: str | None = None

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
