"""The code that a step's result depends on: the closure of a function over the project's source.

The model:

- The closure holds the function, and every top-level function, class and constant of project code
  that it names, directly or through others. It also holds the effects of importing their modules
  besides binding names (``module:(import)``), since an import may fill a registry.
- The digest of the closure covers the content of all of these units. Each name in a unit is
  replaced by the number of the unit that it stands for. So the digest does not depend on where the
  code lies or what its modules are called.
- *Project code* is all code outside the interpreter's library folders, and the package of the
  function itself. The version of an installed library is not part of the closure.
- Nothing is imported: a module is found as the import system would find it, and its source is read.
  So the closure of a step whose libraries take seconds to import is computed in milliseconds.
- An argument is part of the key by its value. So the step's own defaults are left out, unless the
  code that it reaches calls the step again; and so are the fields of a dataclass that the code only
  names as a type.
- Docstrings, annotations, names and texts of errors count only if code in the closure reads them.
  Where the analysis cannot follow the code, it counts more, never less.

The worker observes dependencies that exist only at run time
(:mod:`pipeline.observed.discovery`).

The design follows redun's task hashing, which covers the body of a function but not the functions
that it calls, and Unison, which names code by its content.

``imports`` predicts which libraries a step function imports; it serves only speed.

Each module uses only the modules after it in this list. ``walk`` follows references from unit to
unit. ``walked_before`` caches the result of a walk on disk, ``shelf`` the analysis of a file.
``spelling`` finds what a statement says to its readers, ``effects`` finds statements whose import
has effects, ``meaning`` finds the unit that a name stands for, ``modules`` finds a module's file.
``source`` splits a file into units, ``statement`` is a part of a unit, ``acting`` lists the
conditions under which a statement only binds names, ``reading`` writes its ``form``, ``bindings``
lists the names that it binds.
"""

from pipeline.code.meaning import BINARY, IMPORT
from pipeline.code.walk import NO_CODE, Closure, closure, digests_of, forget

__all__ = ["BINARY", "IMPORT", "NO_CODE", "Closure", "closure", "digests_of", "forget"]
