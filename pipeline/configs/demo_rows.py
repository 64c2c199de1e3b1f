"""Refuses one's own rows together with what belongs to the rows of the demo.

A setting replaces one value of an option. So ``data.path=FILE`` alone would leave the held-out rows
of the demo, and its limit of rows, which the user has never asked for.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline.base.errors import TemperError
from pipeline.configs.shipped import CONF, read_options

DEMO = "house_style"
"""The shipped option of the group ``data`` with the rows of the demo."""


def refuse_mixed_rows(
    config: DictConfig,
    choices: Mapping[str, Any],
    folder: Path | None = None,
    typed: Sequence[str] = (),
) -> None:
    """Refuse a config that has chosen the demo's rows, names others, and has still one of the
    demo's settings of rows.

    Args:
        choices: the chosen options by group.
        typed: the user's own settings, as in ``data.max_train=24``, whatever the demo's are.
        folder: the folder of the experiment's config, which may have an option of that name.

    Raises:
        TemperError: the rows would be mixed.
    """
    own = folder and folder / "data" / f"{DEMO}.yaml"
    is_of_temper = not (own and own.exists()) or own.parent.parent.samefile(CONF)
    if choices.get("data") != DEMO or not is_of_temper:
        return
    of_demo = _settings_of_demo()
    own_values = {setting.partition("=")[0].lstrip("+") for setting in typed}
    left = [
        name
        for name, value in of_demo.items()
        if name not in own_values and OmegaConf.select(config, name) == value
    ]
    if "data.path" in left or not left:
        return
    path = OmegaConf.select(config, "data.path")
    rows = f"data=mine data.path={path or 'FILE.jsonl'}"
    if hub := OmegaConf.select(config, "data.hub"):
        rows = f"data=mine data.path=null data.hub={hub}"
    scale = ", and scale=own to train on all of them" if "scale" in choices else ""
    raise TemperError(
        f"data.path={'null' if path is None else path} would have {', '.join(left)} of the demo "
        f"(data={DEMO}); for rows of your own, write {rows}{scale}"
    )


def _settings_of_demo() -> dict[str, Any]:
    """The settings of rows in the demo's option, by path."""
    _, content = read_options("data")[DEMO]
    rows: Any = OmegaConf.to_container(OmegaConf.create(content["data"]), resolve=True)
    return {f"data.{name}": value for name, value in rows.items()}
