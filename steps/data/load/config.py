"""How raw rows are read and split: the settings that all ``load_`` steps share."""

from dataclasses import dataclass, field

from steps.data.formats.choice import FormatChoice
from steps.data.load.near_duplicates import NearDuplicates
from steps.data.rows.ledger import check_max_dropped
from steps.shared.execution_detail import detail_field


@dataclass(frozen=True)
class LoadConfig:
    """How raw rows are read and split.

    Args:
        test_fraction: of the prompts, held out by a stable hash where no test source is given. None
            are held out by default; ``load_preferences`` without a config holds out a tenth.
        max_train, max_test: keep only the first so many rows of a split.
        format: how the rows are spelled; ``auto`` where that is plain.
        duplicates: ``keep`` counts equal pairs, and pairs that contradict each other; ``drop``
            keeps the first of equal rows, in either split, and no pair that another contradicts.
        max_dropped: how many rows may be unusable: below 1 a fraction of them, from 1 on a number.
        near_duplicates: leave out rows that say nearly what an earlier one says.
        workers: the number of processes; 0: one for each core. The result does not depend on it.
    """

    test_fraction: float = 0.0
    max_train: int | None = None
    max_test: int | None = None
    format: FormatChoice = field(default_factory=FormatChoice)
    duplicates: str = "keep"
    max_dropped: float = 0.5
    near_duplicates: NearDuplicates | None = field(default=None, metadata={"before": None})
    workers: int = detail_field(1)

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            raise ValueError(f"test_fraction must be in [0, 1), got {self.test_fraction}")
        for name in ("max_train", "max_test"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ValueError(f"{name} must be at least 1 or null, got {limit}")
        if self.duplicates not in ("keep", "drop"):
            raise ValueError(f"duplicates must be keep or drop, got {self.duplicates!r}")
        if self.workers < 0:
            raise ValueError(f"workers must be 0 (one for each core) or more, got {self.workers}")
        check_max_dropped(self.max_dropped)
