"""What code a step's result depends on: the closure of a function over the project's source.

The model:

- The closure holds the function, every top-level function, class and constant of project code
  that these name, directly or through others, and what importing their modules does besides
  defining things (``module:(import)``): a registry may be filled there. Each is known by the
  digest of its normal form (:mod:`pipeline.code.normal`) and of what the names in it stand for, so
  neither an edit elsewhere nor a comment changes the closure, and an edit within always does.
- *Project code* is what does not lie in the interpreter's library folders, and whatever package
  the function itself is in. The version of an installed library is no part of the closure.
- Nothing is imported: a module is found as the import system would find it, and read. So a step
  whose machinery takes seconds to import is looked at in milliseconds.
- What arrives in an argument is part of the key by its value. So the step's own defaults are left
  out, unless what it reaches calls it again, and so are the fields of a dataclass that the code
  only names as a type.

What static reading cannot see is not here: a module whose name is computed, a definition that a
library's decorator registers (``@codecs.register``) where nobody names it, what an assignment
changes through more than one call, and in which order modules are imported.

After redun's task hashing, which covers the body of a function but not what it calls.

Each module uses only those after it: ``walk`` goes from unit to unit, ``effects`` says what
importing does besides, ``meaning`` what a name stands for, ``modules`` finds a file, ``source``
cuts it into units, ``statement`` is a part of one, ``execution`` is what it does when it runs,
``names`` and ``bindings`` are what it reads and binds, ``normal`` is how it is written.
"""

from pipeline.code.meaning import BINARY, IMPORT
from pipeline.code.walk import closure

__all__ = ["BINARY", "IMPORT", "closure"]
