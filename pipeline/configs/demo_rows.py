"""Refuses one's own rows together with what belongs to the rows of the demo.

A setting replaces one value of an option. So ``data.path=FILE`` alone would leave the held-out rows
of the demo, and its limit of rows, which the user has never asked for.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline.configs.shipped import CONF, shipped_path
from pipeline.errors import TemperError

DEMO = "house_style"
"""The shipped option of the group ``data`` with the rows of the demo."""


def refuse_mixed_rows(
    config: DictConfig, choices: Mapping[str, Any], folder: Path | None = None
) -> None:
    """Refuse a config that has chosen the demo's rows and names others, even if it replaces their
    held-out rows and limits one by one.

    Args:
        choices: the chosen options by group.
        folder: the folder of the experiment's config, which may have an option of that name.

    Raises:
        TemperError: the rows would be mixed.
    """
    own = folder and folder / "data" / f"{DEMO}.yaml"
    is_of_temper = not (own and own.exists()) or own.parent.parent.samefile(CONF)
    if choices.get("data") != DEMO or not is_of_temper:
        return
    path = OmegaConf.select(config, "data.path")
    if path == shipped_path(f"{DEMO}/train.jsonl"):
        return
    rows = f"data=mine data.path={path or 'FILE.jsonl'}"
    if hub := OmegaConf.select(config, "data.hub"):
        rows = f"data=mine data.path=null data.hub={hub}"
    scale = ", and scale=own to train on all of them" if "scale" in choices else ""
    raise TemperError(
        f"data.path={'null' if path is None else path} would have the held-out rows and the limits "
        f"of the demo (data={DEMO}); for rows of your own, write {rows}{scale}"
    )
