"""Traits of code: what it reads that does not count otherwise."""

from pipeline.code.form import DOCS, HINTS, NAMES, TEXTS

TYPES, SUBCLASSES, ITSELF = "types", "subclasses", "itself"

MODULES, NAMESPACES, LOOKUPS, ORDER = "modules", "namespaces", "lookups", "order"
"""Further traits. ``TYPES``: the code may get from a value to the declarations of its type.
``SUBCLASSES``: it lists the subclasses of a class. ``ITSELF``: a class accesses itself.
``MODULES``: names of modules appear in its results. ``NAMESPACES``: it may access any global of a
module that has code in the closure. ``LOOKUPS``: it may do so for every module that is loaded.
``ORDER``: it may list the globals of a module in their order."""

DETAIL = "execution_detail"
"""The decorator that declares that a definition affects no result."""

TRAITS_OF_NAMES = {
    **dict.fromkeys(("__doc__", "getdoc"), (DOCS,)),
    **dict.fromkeys(("__name__", "__qualname__", "co_name", "co_qualname"), (NAMES,)),
    "__module__": (NAMES, MODULES),
    **dict.fromkeys(("__annotations__", "__annotate__"), (HINTS, TYPES, ORDER)),
    **dict.fromkeys(("__signature__", "__wrapped__", "__type_params__"), (HINTS, TYPES)),
    **dict.fromkeys(("__class__", "__match_args__"), (TYPES,)),
    "__dataclass_fields__": (TYPES, HINTS),
    "__subclasses__": (SUBCLASSES,),
    "delattr": (TYPES,),
    "__import__": (LOOKUPS,),
    **dict.fromkeys(("vars", "__dict__", "globals"), (ORDER,)),
    **dict.fromkeys(("__mro__", "__bases__", "mro"), (NAMES, MODULES)),
    "locals": (NAMES, TEXTS, ORDER),
    **dict.fromkeys(("annotation", "return_annotation"), (HINTS, TYPES)),
    **dict.fromkeys(("handlers", "callHandlers", "lastResort"), (TEXTS, NAMES, MODULES)),
    **dict.fromkeys(("stderr", "push"), (TEXTS,)),
    **dict.fromkeys(("__exit__", "__aexit__", "set_exception_handler", "settrace"), (TEXTS,)),
    **dict.fromkeys(("unraisablehook", "setprofile", "callbacks"), (TEXTS,)),
    "return_exceptions": (TEXTS, NAMES, MODULES),
    **dict.fromkeys(("__code__", "f_code", "gi_code", "cr_code"), (DOCS, HINTS, NAMES, TEXTS)),
    **dict.fromkeys(("f_locals", "f_globals", "tb_frame", "f_back"), (NAMES, NAMESPACES)),
    **dict.fromkeys(
        ("__context__", "__cause__", "__traceback__", "__notes__"), (TEXTS, NAMES, MODULES)
    ),
    **dict.fromkeys(("excepthook", "showwarning", "formatwarning", "filterwarnings"), (TEXTS,)),
    **dict.fromkeys(
        ("addHandler", "addFilter", "setLogRecordFactory", "setLoggerClass"),
        (TEXTS, NAMES, MODULES),
    ),
}
"""Names with which code reads what does not count otherwise: docstrings, names, texts and so on."""
