"""What code a step's result depends on: the closure of a function over the project's source.

The model:

- The closure holds the function, every top-level function, class and constant of project code
  that these name, directly or through others, and what importing their modules does besides
  binding names (``module:(import)``): a registry may be filled there.
- Its digest is over what all of these say, each name as the number of what it stands for. So it is
  the same wherever the code lies and whatever its modules are called.
- *Project code* is what does not lie in the interpreter's library folders, and whatever package
  the function itself is in. The version of an installed library is no part of the closure.
- Nothing is imported: a module is found as the import system would find it, and read. So a step
  whose machinery takes seconds to import is looked at in milliseconds.
- What arrives in an argument is part of the key by its value. So the step's own defaults are left
  out, unless what it reaches calls it again, and so are the fields of a dataclass that the code
  only names as a type.
- What is said only to some readers (docstrings, annotations, names, texts of errors) counts only if
  such a reader is among the code. Where reading cannot follow, more counts, not less.

What only exists at run time is seen by the worker instead (:mod:`pipeline.observed.discovery`).

After redun's task hashing, which covers the body of a function but not what it calls, and Unison's,
which names code by what it says.

``imports`` says which libraries a step function is certain to import; it is for speed alone.

Each module uses only those after it: ``walk`` goes from unit to unit, ``walked_before`` keeps what
a walk found, ``shelf`` what a file yields, both on disk; ``effects`` says what
importing does besides, ``meaning`` what a name stands for, ``modules`` finds a file, ``source``
cuts it into units, ``statement`` is a part of one, ``acting`` is what
that needs in order to do nothing but bind names, ``reader`` writes its ``form``, ``bindings`` are
the names that it binds.
"""

from pipeline.code.meaning import BINARY, IMPORT
from pipeline.code.walk import NO_CODE, Closure, closure, digests_of, forget

__all__ = ["BINARY", "IMPORT", "NO_CODE", "Closure", "closure", "digests_of", "forget"]
