"""Spares libraries the compilation of their dataclasses' methods, a tenth of the time to import
torch and transformers.

``dataclasses`` writes the methods of every class as text and compiles it, and these libraries have
a thousand such classes. The compiled code depends on the text and on this interpreter, and on
nothing else. So it is kept among the caches of the user, by the text. Each class gets code of its
own, also where several have the same text: tools tell functions apart by their code.

It is executed where the text would be, with the same names. In the end ``dataclasses`` compiles by
itself again, so a worker finds it as a fresh interpreter does.
"""

import base64
import dataclasses
import json
import marshal
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.code import shelf

_EXECUTE = "exec"


@contextmanager
def methods_known(packages: Collection[str]) -> Iterator[None]:
    """Let dataclasses that are defined in the block use what is kept of an earlier import of the
    same packages; keep what they compile."""
    about = [sys.version, sys.flags.optimize, sorted(packages)]
    place = shelf.place("code of methods", json.dumps(about).encode())
    known = _found_before(place)
    used, plain = dict[str, bytes](), exec

    def execute(text: str, names: dict[str, Any], made: dict[str, Any]) -> None:
        if text not in used:
            kept = known.get(text)
            used[text] = kept or marshal.dumps(compile(text, "<string>", "exec", dont_inherit=True))
        plain(marshal.loads(used[text]), names, made)

    setattr(dataclasses, _EXECUTE, execute)  # found before the built-in function of this name
    try:
        yield
    finally:
        delattr(dataclasses, _EXECUTE)
    if used.keys() - known.keys():
        shelf.save(place, base64.b64encode(marshal.dumps(used)).decode())


def _found_before(place: Path) -> dict[str, bytes]:
    """What is kept. It will be executed, so it must be this user's own."""
    with suppress(OSError, ValueError, TypeError, EOFError):
        if place.stat().st_uid == os.geteuid():
            return marshal.loads(base64.b64decode(shelf.load(place)))
    return {}
