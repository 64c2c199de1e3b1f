"""Optional packages: which are missing, and how to install them."""

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec

from pipeline.base.errors import TemperError

DISTRIBUTION = "temper-ml"
_ALWAYS = re.compile(r"[\w.-]+(?=[^;]*$)")
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
    """Of each package that does not come with every installation, the smallest extra with it."""
    from importlib.metadata import PackageNotFoundError, requires  # imported late, since it is slow

    try:
        declared = requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # run from a folder without an installation
        return {}
    found = [(_normal(line[1]), line[2]) for line in map(_EXTRA.match, declared) if line]
    sizes = Counter(extra for _, extra in found)
    found.sort(key=lambda pair: sizes[pair[1]], reverse=True)  # of equal keys, the last one stays
    always = {_normal(line[0]) for line in map(_ALWAYS.match, declared) if line}
    return {name: extra for name, extra in found if extra != "dev" and name not in always}


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
