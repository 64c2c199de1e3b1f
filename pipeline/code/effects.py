"""The effects of importing a module besides binding names: which of its statements act.

:mod:`pipeline.code.acting` lists the conditions under which a statement does not act. This module
checks them against the units that the names stand for. Harmless are a short list of functions of
the standard library and a few other libraries, and project code that has been analysed. Everything
else acts.
"""

import builtins
import itertools
from collections.abc import Collection, Iterable, Iterator
from functools import cache

from pipeline.code import acting
from pipeline.code.acting import PLAIN_ATTRIBUTES, PURE_METHODS
from pipeline.code.form import Load, Need, Piece, Ref, Use, first_names, flat, word_set, words
from pipeline.code.meaning import IMPORT, Project, Target, Unit
from pipeline.code.modules import is_core
from pipeline.code.source import Module
from pipeline.code.statement import Statement

_PLAIN_BUILTINS = word_set("""
    abs all any ascii bin bool bytearray bytes callable chr complex dict divmod filter float
    format frozenset getattr hasattr hash hex int isinstance issubclass len list map max min oct
    ord pow range repr reversed round set slice sorted str sum tuple zip enumerate type
""")
_BUILTINS = _PLAIN_BUILTINS | frozenset(
    {"object", "property", "staticmethod", "classmethod", "super", "memoryview"}
    | {n for n, v in vars(builtins).items() if isinstance(v, type) and issubclass(v, BaseException)}
)
_MAKE_DATA = words("""
    re.compile re.escape math textwrap.dedent os.path os.environ.get os.getenv os.fspath pathlib
    datetime.timedelta datetime.date datetime.datetime datetime.timezone decimal.Decimal
    fractions.Fraction uuid.UUID struct.calcsize json.dumps json.loads sys.intern
    collections.deque collections.OrderedDict collections.Counter types.MappingProxyType pyarrow
    numpy.dtype numpy.finfo numpy.iinfo torch.finfo torch.iinfo torch.device torch.Size
    importlib.metadata.version enum.auto torch.cuda.is_available typing.get_args
    itertools.chain.from_iterable collections.namedtuple itertools.product
    itertools.combinations itertools.permutations pydantic.Field pydantic.ConfigDict
    pydantic.PrivateAttr pydantic.AfterValidator pydantic.BeforeValidator pydantic.PlainValidator
    pydantic.WrapValidator attrs.validators attr.validators
""")
"""Library functions that return plain data for plain data."""
_HARMLESS = words("""
    typing typing_extensions dataclasses.field dataclasses.dataclass functools.partial
    functools.wraps functools.lru_cache functools.cache functools.cached_property
    functools.singledispatch functools.total_ordering operator.itemgetter operator.attrgetter
    logging.getLogger abc.abstractmethod contextlib.contextmanager
    contextlib.asynccontextmanager contextvars.ContextVar threading.Lock threading.RLock
    threading.local threading.Event collections.defaultdict collections.ChainMap
    types.SimpleNamespace enum.unique string.Template struct.Struct torch.no_grad
    torch.inference_mode triton.jit weakref.WeakKeyDictionary weakref.WeakValueDictionary
    weakref.WeakSet random.Random numpy.random.default_rng numpy.random.RandomState
    torch.Generator torch.compiler torch.jit.ignore jinja2.Template enum.Enum enum.IntEnum
    pydantic.field_validator pydantic.model_validator pydantic.computed_field
    pydantic.field_serializer pydantic.model_serializer attrs.define attrs.frozen attrs.mutable
    attrs.field attrs.Factory attr.s attr.ib attr.attrs attr.attrib attr.Factory
""")
"""Library functions that change nothing, whatever arguments a harmless call passes."""
_BASES = words("""
    abc.ABC typing.Generic typing.Protocol typing.NamedTuple typing.TypedDict typing_extensions
    enum collections.UserDict collections.UserList json collections.abc collections.OrderedDict
    contextlib logging threading.Thread torch.nn torch.autograd.Function torch.utils.data
    torch.optim string.Template torch.utils._python_dispatch pathlib pydantic.BaseModel datetime
    codecs transformers.PreTrainedModel transformers.PretrainedConfig argparse ast io
    transformers.StoppingCriteria transformers.LogitsProcessor types.SimpleNamespace
    unittest.TestCase html.parser.HTMLParser dict concurrent.futures
""")
_METACLASSES = ("abc.ABCMeta", "enum.EnumMeta", "enum.EnumType")
_CONSTRUCTORS = word_set("""
    __new__ __init__ __post_init__ __setattr__ __getattribute__ __del__
""")
_HOOKS = word_set("""
    __init_subclass__ __class_getitem__ __mro_entries__ __set_name__ __get__
    __pydantic_init_subclass__ __attrs_init_subclass__ __subclasshook__ __instancecheck__
    __prepare__
""")
_OPERATORS = word_set("""
    __getitem__ __getattr__ __getattribute__ __or__ __ror__ __and__ __rand__ __xor__ __add__
    __radd__ __sub__ __mul__ __rmul__ __truediv__ __floordiv__ __mod__ __pow__ __matmul__
    __rmatmul__ __lshift__ __rshift__ __neg__ __pos__ __invert__
""")
"""Special methods that an annotation such as ``a["x"] | b.c`` calls."""
_ENUM_HOOKS = frozenset({"_generate_next_value_", "_missing_", "_ignore_", "_order_"})


OWN, ANY = "own", "any"
"""Classes of the project, and classes of libraries too."""


class Effects:
    """The effects of importing each module of a project. ``listed`` are the classes whose
    subclasses some code lists: ``OWN``, or ``ANY``. Defining a subclass of these acts."""

    def __init__(self, project: Project, listed: str = ""):
        self.project, self.listed = project, listed
        self._held: dict[Need, bool] = {}
        self._matters: dict[str, bool] = {}
        self._tangled: dict[str, bool] = {}
        self.of = cache(self._of)
        self.reached = cache(self._reached)
        self.modules_of = cache(lambda load: tuple(self._modules_of(load)))
        self.acting = cache(lambda load: tuple(self._acting(load)))
        self.places = cache(self._places)

    def _of(self, module: str) -> tuple[Statement, ...]:
        """The statements of a module that do more than bind names when it is imported."""
        if (source := self.project.module(module)) is None:
            return ()
        others = (statement for statement in source.statements if statement.kind != "import")
        return tuple(statement for statement in others if self._acts(source, statement))

    def matters(self, module: str) -> bool:
        """Whether importing a module acts, by itself or through its imports."""
        if module not in self._matters:
            seen, waiting, found = {module}, [module], False
            while waiting and not found:
                name = waiting.pop()
                source = self.project.module(name)
                found = bool(source and source.binary) or bool(self.of(name))
                found = found or self.is_tangled(name)
                for other in self.loaded(source) if source else ():
                    if other not in seen:
                        seen.add(other)
                        waiting.append(other)
            self._matters.update((name, False) for name in seen if not found)
            self._matters[module] = found
        return self._matters[module]

    def _acting(self, load: Load) -> Iterator[Unit]:
        """The effects of the modules that an import loads, where these act."""
        return ((name, IMPORT) for name in self.modules_of(load) if self.matters(name))

    def is_tangled(self, module: str) -> bool:
        """Whether a module is in an import cycle in which a statement reads a name of another
        module of the cycle. The value then depends on which module is imported first, and on the
        position of the imports."""
        if module not in self._tangled:
            circle = [n for n in self.reached(module) if module in self.reached(n)]
            looks = module in circle and any(self._looks_at(name, circle) for name in circle)
            self._tangled.update((name, looks) for name in (*circle, module))
        return self._tangled[module]

    def _reached(self, module: str) -> frozenset[str]:
        """The project modules that a module imports, also indirectly, without parent packages."""
        seen: set[str] = set()
        waiting = [module]
        while waiting:
            source = self.project.module(waiting.pop())
            for statement in source.statements if source else ():
                new = {n for load in statement.loads for n in self._named(load)} - seen
                seen |= new
                waiting.extend(new)
        return frozenset(seen)

    def _named(self, load: Load) -> Iterator[str]:
        """The project modules that an import statement names."""
        for name in (load.module, f"{load.module}.{load.name}"):
            if self.project.module(name) is not None:
                yield name

    def _looks_at(self, module: str, others: Collection[str]) -> bool:
        """Whether a top-level statement of a module reads a name that is imported from `others`."""
        source = self.project.module(module)
        assert source is not None
        imported = {
            local
            for local, sources in source.names.items()
            for _, load in sources
            if not set(others).isdisjoint(self._named(load))
        }
        return any(
            statement.kind == "other" and not imported.isdisjoint(first_names(statement.form))
            for statement in source.statements
        )

    def loaded(self, source: Module) -> Iterator[str]:
        """The project modules that a module's imports load, in order."""
        for statement in source.statements:
            for load in statement.loads:
                yield from self.modules_of(load)

    def _places(self, module: str) -> tuple[int, ...]:
        """The positions of the imports of a module that act."""
        source = self.project.module(module)
        return tuple(
            statement.place
            for statement in (source.statements if source else ())
            for load in statement.loads
            if any(map(self.matters, self.modules_of(load)))
        )

    def _modules_of(self, load: Load) -> Iterator[str]:
        """The project modules that an import loads, parent packages first."""
        project = self.project
        for name in itertools.accumulate(load.module.split("."), "{}.{}".format):
            if project.module(name) is not None:
                yield name
        source = project.module(load.module)
        if source is None:
            return
        names = (source.exports or ()) if load.name == "*" else filter(None, [load.name])
        for name in names:
            if project.module(f"{load.module}.{name}") is not None:
                yield f"{load.module}.{name}"
            elif "__getattr__" in source.units:
                for target in project.resolve(load.module, (name,)):
                    if not target.library and target.module != load.module:
                        yield target.module

    # --- what a statement needs ---------------------------------------------------------------

    def _acts(self, source: Module, statement: Statement) -> bool:
        if statement.needs is None:
            return True
        if any(name in source.names or name not in source.units for name in statement.changes):
            return True
        if self.listed == ANY and statement.bases:
            return True
        if self.listed == OWN and any(map(self._is_own, statement.bases)):
            return True
        if statement.is_class and self._is_enum(statement) and not self._is_quiet_enum(statement):
            return True
        return not (self._hold(statement.needs) and self._have_quiet_defaults(statement))

    def _have_quiet_defaults(self, statement: Statement) -> bool:
        """Whether the defaults of a function do not act. A step's defaults may also be configs:
        they are its arguments, and the classes of arguments are part of the code."""
        needs = statement.needs_of_defaults
        is_step = statement.is_function and any(map(self.project.is_core, statement.decorators))
        if needs is None or not is_step:
            return self._hold(needs)
        return all(self._holds(need) or self._is_config(need) for need in needs)

    def _is_config(self, need: Need) -> bool:
        """Whether the name is called and stands for a dataclass."""
        parts = self.project.parts([need.ref]) if need.what == acting.CALLED else []
        return bool(parts) and all(map(self.project.is_dataclass, parts))

    def _holds(self, need: Need) -> bool:
        if need not in self._held:
            before = len(self._held)
            self._held[need] = True  # assumed, so that a cycle of needs depends on the others
            if not self._look(need):
                for other in [*itertools.islice(self._held, before, None)]:
                    if self._held[other]:  # perhaps only because of the assumption
                        del self._held[other]
                self._held[need] = False
        return self._held[need]

    def _hold(self, needs: tuple[Need, ...] | None) -> bool:
        return needs is not None and all(map(self._holds, needs))

    def _look(self, need: Need) -> bool:
        if need.holder is not None:
            return self._is_held(need, need.holder)
        targets = self.project.meaning(need.ref)
        if not targets:
            return _holds_of_builtin(need)
        check = {
            acting.CALLED: self._is_harmless,
            acting.MAKES: self._makes_data,
            acting.DECORATES: lambda target: target.library and _is_of(target, _HARMLESS),
            acting.APPLIED: lambda target: self._is_harmless(target) or self._is_plain(target),
            acting.PLAIN: self._is_plain,
            acting.EITHER: lambda target: self._is_plain(target) or self._is_type(target),
            acting.READ: self._is_read,
            acting.INHERITED: self._is_quiet_base,
            acting.METACLASS: self._is_quiet_metaclass,
            acting.OWNED: lambda target: self._is_owned(need.ref.module, target),
            acting.HINTED: self._is_inert,
        }[need.what]
        return all(map(check, targets))

    def _is_held(self, need: Need, holder: Ref) -> bool:
        """Whether an argument, or the call that makes it, is harmless to give to the holder."""
        if self._holds(
            Need({acting.HANDED: acting.MAKES, acting.HELD: acting.PLAIN}[need.what], need.ref)
        ):
            return True
        is_quiet = need.what == acting.HELD or self._holds(Need(acting.CALLED, need.ref))
        targets = self.project.meaning(holder) if is_quiet else ()
        return bool(targets) and all(map(self._only_stores, targets))

    def _only_stores(self, target: Target) -> bool:
        """Whether it is a dataclass whose constructor only sets the fields."""
        parts = () if target.library or target.rest else self.project.statements(target)
        return bool(parts) and all(
            self.project.is_dataclass(part)
            and self._is_simple_class(part)
            and not any("__post_init__" in base.special for base in self._with_bases(part))
            for part in parts
        )

    def _with_bases(self, part: Statement) -> Iterator[Statement]:
        yield part
        for base in self.project.parts(part.bases):
            yield from self._with_bases(base)

    # --- what is called ------------------------------------------------------------------------

    def _is_harmless(self, target: Target) -> bool:
        """Whether calling it with plain data changes nothing but the object that it returns."""
        if target.library:
            return _is_of(target, (*_MAKE_DATA, *_HARMLESS))
        parts = self.project.statements(target)
        if target.rest:
            is_read = len(target.rest) == 1 and target.rest[0] in PURE_METHODS
            return is_read and self._is_plain(Target(target.module, target.name))
        return bool(parts) and all(map(self._is_harmless_part, parts))

    def _makes_data(self, target: Target) -> bool:
        """Whether calling it with plain data changes nothing and returns plain data."""
        if target.library:
            return _is_of(target, _MAKE_DATA)
        parts = self.project.statements(target)
        if target.rest:
            return self._is_harmless(target)
        return bool(parts) and all(
            part.is_function and not part.decorators and self._hold(part.needs_of_result)
            for part in parts
        )

    def _is_harmless_part(self, part: Statement) -> bool:
        if part.is_function:
            return not part.decorators and self._hold(part.needs_of_call)
        return part.is_class and self._is_simple_class(part)

    def _is_simple_class(self, part: Statement) -> bool:
        """Whether constructing an instance of a class changes nothing else."""
        if part.metaclass or not all(map(self._is_simple_base, part.bases)):
            return False
        own = part.decorators[: part.own_decorators]
        if _HOOKS.intersection(part.special) or "__set__" in part.special:
            return False
        if not own:
            return not _CONSTRUCTORS.intersection(part.special)
        is_dataclass = self.project.is_dataclass(part) and len(own) == 1
        return is_dataclass and self._hold(part.needs_of_making)

    def _is_simple_base(self, base: Ref | None) -> bool:
        if base is None:
            return False
        return all(
            str(target).startswith(("abc.ABC", "typing.Generic", "typing.Protocol"))
            if target.library
            else any(p.is_class for p in self.project.statements(target))
            and all(map(self._is_simple_class, self.project.statements(target)))
            for target in self.project.meaning(base)
        )

    # --- what is worked with --------------------------------------------------------------------

    def _is_plain(self, target: Target) -> bool:
        """Whether it is data whose operators and attributes only compute values."""
        if target.library:
            return True
        parts = self.project.statements(target)
        if any(part.is_class for part in parts):
            return self._is_attribute(target, parts)
        is_simple = all(name in PLAIN_ATTRIBUTES for name in target.rest)
        return is_simple and bool(parts) and all(self._hold(part.needs_of_data) for part in parts)

    def _is_attribute(self, target: Target, parts: tuple[Statement, ...]) -> bool:
        """Whether it is a class attribute with plain data, or a member of an enum."""
        return bool(target.rest) and all(
            part.is_class
            and not part.metaclass
            and target.rest[0] in part.attributes
            and target.rest[1:] in ((), ("value",), ("name",))
            and not {"__getattribute__", "__get__"}.intersection(part.special)
            for part in parts
        )

    def _is_read(self, target: Target) -> bool:
        """Whether reading an attribute of it runs no code."""
        parts = self.project.statements(target)
        is_function = bool(parts) and all(
            part.is_function and all(map(self.project.is_core, part.decorators)) for part in parts
        )
        return not target.rest or is_function or self._is_plain(target)

    def _is_type(self, target: Target) -> bool:
        """Whether it is a type, so that ``|`` and ``[]`` only make another type."""
        if target.library:
            return True
        parts = self.project.statements(target)
        return (
            bool(parts)
            and not target.rest
            and all(
                self._is_quiet_class(part)
                if part.is_class
                else part.kind == "other" and not part.makers and self._hold(part.needs)
                for part in parts
            )
        )

    def _is_owned(self, module: str, target: Target) -> bool:
        """Whether it is a container that the module itself made and that has no other name."""
        if target.library or target.module != module or target.name is None or target.rest:
            return False
        parts = self.project.statements(target)
        return bool(parts) and all(
            target.name in part.made or target.name not in part.binds for part in parts
        )

    # --- what annotations use ---------------------------------------------------------------------

    def is_inert(self, name: Ref) -> bool:
        """Whether the attributes, items and operators of a name run no project code when an
        annotation uses them."""
        return self._holds(Need(acting.HINTED, name))

    def _is_inert(self, target: Target) -> bool:
        parts = () if target.library else self.project.statements(target)
        return all(
            self._is_inert_class(part)
            if part.is_class
            else part.is_function or all(map(self._is_inert_value, flat(part.form, ())))
            for part in parts
        )

    def _is_inert_class(self, part: Statement) -> bool:
        family = list(self._with_bases(part))
        metas = self.project.parts(meta for member in family for meta in member.metaclass)
        of_type = [base for meta in metas for base in self._with_bases(meta)]
        return not any("__class_getitem__" in member.special for member in family) and not any(
            _OPERATORS.intersection(member.special) for member in of_type
        )

    def _is_inert_value(self, piece: Piece) -> bool:
        """Whether a part of a value, such as ``Registry()`` or ``Alias = Registry``, is inert."""
        if not isinstance(piece, Ref):
            return True
        made_by = self.project.parts([piece]) if piece.use == Use.CALL else []
        return self.is_inert(piece) and not any(
            part.is_function
            or any(_OPERATORS.intersection(base.special) for base in self._with_bases(part))
            for part in made_by
        )

    # --- what is inherited from -----------------------------------------------------------------

    def _is_quiet_base(self, target: Target) -> bool:
        """Whether inheriting from it runs no code: it has no hooks for subclasses."""
        if target.library:
            return _is_of(target, _BASES)
        parts = self.project.statements(target)
        return bool(parts) and not target.rest and all(map(self._is_quiet_class, parts))

    def _is_quiet_class(self, part: Statement) -> bool:
        return (
            part.is_class
            and not _HOOKS.intersection(part.special)
            and all(self._holds(Need(acting.METACLASS, meta)) for meta in part.metaclass)
            and all(
                base is not None and self._holds(Need(acting.INHERITED, base))
                for base in part.bases
            )
        )

    def _is_quiet_metaclass(self, target: Target) -> bool:
        if target.library:
            return _is_of(target, _METACLASSES)
        parts = self.project.statements(target)
        return bool(parts) and all(not p.special and self._is_quiet_class(p) for p in parts)

    def _is_enum(self, part: Statement, below: tuple[Statement, ...] = ()) -> bool:
        """Whether a class is an enum; as in `class Module(Module)`, a base may have its name."""
        return part not in below and any(
            str(target).startswith("enum.")
            if target.library
            else any(self._is_enum(p, (*below, part)) for p in self.project.statements(target))
            for target in self.project.targets(part.bases)
        )

    def _is_quiet_enum(self, part: Statement, below: tuple[Statement, ...] = ()) -> bool:
        """Whether creating the members of an enum runs no project code."""
        hooks = {"__new__", "__init__", *_ENUM_HOOKS}
        bases = (base for base in self.project.parts(part.bases) if base not in (*below, part))
        is_plain = not hooks.intersection((*part.special, *part.methods))
        return is_plain and all(self._is_quiet_enum(base, (*below, part)) for base in bases)

    def _is_own(self, reference: Ref | None) -> bool:
        """Whether it is project code, or may be."""
        return reference is None or any(not t.library for t in self.project.meaning(reference))


def _holds_of_builtin(need: Need) -> bool:
    name, *rest = need.ref.parts
    if need.what == acting.CALLED:
        return name in _BUILTINS and all(part in PURE_METHODS for part in rest)
    if need.what == acting.MAKES:
        known = name in _PLAIN_BUILTINS and all(part in PURE_METHODS for part in rest)
        return known and name != "type"
    return need.what not in (acting.DECORATES, acting.OWNED) or name in ("property",)


def _is_of(target: Target, known: Iterable[str]) -> bool:
    """Whether it is one of these names or lies in one; the caching core counts as harmless."""
    name = str(target)
    return is_core(target.module) or any(
        name == beginning or (name.startswith(f"{beginning}.") and beginning not in _CLASSES)
        for beginning in known
    )


_CLASSES = word_set("""
    collections.deque collections.Counter collections.OrderedDict collections.ChainMap
    collections.defaultdict types.SimpleNamespace functools.singledispatch
    weakref.WeakKeyDictionary weakref.WeakValueDictionary weakref.WeakSet
""")
"""Classes that are harmless to construct, but have methods that are not harmless."""
