"""Optional packages: which are missing, and how to install them."""

import re
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec

from pipeline.errors import TemperError

DISTRIBUTION = "temper-ml"
_EXTRA = re.compile(r"""^([\w.-]+).*;.*extra == ["']([\w-]+)["']""")


def require_installed(packages: Iterable[str], who: str) -> None:
    """
    Args:
        packages: names of top-level modules, as in ``import math_verify``.
        who: the part of Temper that needs them, for example ``launcher ray``.

    Raises:
        TemperError: one of them is not installed.
    """
    for package in packages:
        if find_spec(package) is None:
            raise TemperError(
                f"{who} needs the package {package}, which is not installed: "
                f"{how_to_install(package)}"
            )


def how_to_install(package: str) -> str:
    """The command that installs a package, through one of our extras if it belongs to one."""
    extra = _extras().get(_normal(package))
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {package}"


def is_extra(package: str) -> bool:
    return _normal(package) in _extras()


@cache
def _extras() -> dict[str, str]:
    """The name of the extra that contains each package."""
    from importlib.metadata import PackageNotFoundError, requires  # imported late, since it is slow

    try:
        declared = requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # run from a folder without an installation
        return {}
    found = filter(None, map(_EXTRA.match, declared))
    return {_normal(line[1]): line[2] for line in found if line[2] != "dev"}


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
