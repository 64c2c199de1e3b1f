"""A job on shards whose processes import little."""

from dataclasses import dataclass
from pathlib import Path

from steps.data.work.workers import ProcessShard, Shard, Summary


@dataclass(frozen=True)
class Doubling:
    """Doubles the number in each file."""

    identity: str = "doubling"

    def open(self) -> ProcessShard:
        return self.double

    def double(self, shard: Shard, folder: Path) -> Summary:
        doubled = 2 * int(shard.source.read_text())
        (folder / "doubled").write_text(str(doubled))
        return {"doubled": doubled}
