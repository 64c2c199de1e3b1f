"""Random functions, in which small things differ."""

import ast
import contextlib
import random
from typing import Any

from meaning import compiles

CONSTANTS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 1.0, 0.0, -0.0, 1j, True, False, None, ..., 10**20, float("inf")),
    *("", "a", "b", "None", "1", b"", b"a", "a b", "é", "\ud800", "\\n", "\n", "'", '"'),
)
BINARY = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult)
BITS = (ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift)
UNARY = (ast.Not, ast.USub, ast.UAdd, ast.Invert)
COMPARE = (
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
    ast.Is,
    ast.IsNot,
    ast.In,
    ast.NotIn,
)


class Writer:
    """Writes random functions; the same ones for the same seed."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.names = "abcdxyz"

    def function(self, name: str = "helper") -> str:
        """A function whose source compiles."""
        while True:
            tree = ast.Module([self._function(name)], [])
            with contextlib.suppress(ValueError):  # what no f-string can hold
                source = ast.unparse(ast.fix_missing_locations(tree))
                if compiles(source):
                    return source + "\n"

    def module(self) -> str:
        """A function ``helper`` with others, a class and constants, all of which it uses."""
        self.names = ["a", "x", "one", "two", "Kind", "TABLE"]  # type: ignore[assignment]
        methods = "".join(f"    {line}\n" for line in self.function("method").splitlines())
        constant = ast.unparse(self.constant())
        parts = [
            f"TABLE = {{'a': {constant}, 'b': [one, two]}}\n",
            self.function("one"),
            f"class Kind:\n    rate = {constant}\n{methods}",
            self.function("two"),
            self.function("rest"),
            "def helper(out):\n    return (rest, one(out), two(Kind), TABLE['a'])\n",
        ]
        self.names = "abcdxyz"
        return "".join(parts)

    def _function(self, name: str) -> ast.stmt:
        maker = ast.AsyncFunctionDef if self.random.random() < 0.1 else ast.FunctionDef
        body = [self.statement(2) for _ in range(self.random.randint(1, 3))]
        body.append(ast.Return(self.expression(3)))
        made: Any = maker(name, self.arguments(1), body, [])
        return made

    def arguments(self, depth: int) -> ast.arguments:
        chance = self.random.random
        names = [ast.arg(name) for name in "abcd"]
        cut, stop = sorted(self.random.choices(range(5), k=2))
        plain, keywords = names[:stop], names[stop:]
        positional = plain[:cut] if chance() < 0.3 else []
        plain = plain[len(positional) :]
        count = len(positional) + len(plain)
        defaults = [
            self.constant() for _ in range(self.random.choice([0, 0, min(count, 1), count]))
        ]
        keyword_defaults: list[Any] = [
            self.constant() if chance() < 0.5 else None for _ in keywords
        ]
        return ast.arguments(
            positional,
            plain,
            ast.arg("rest") if chance() < 0.3 else None,
            keywords,
            keyword_defaults,
            ast.arg("more") if chance() < 0.3 else None,
            defaults,
        )

    def name(self) -> ast.expr:
        return ast.Name(self.random.choice(self.names))

    def target(self) -> ast.expr:
        kind = self.random.randint(0, 6)
        if kind < 4:
            return ast.Name(self.random.choice("xyz"), ast.Store())
        if kind == 4:
            return ast.Attribute(self.name(), self.random.choice("pq"), ast.Store())
        if kind == 5:
            return ast.Subscript(self.name(), self.expression(1), ast.Store())
        return ast.Tuple([ast.Name("x", ast.Store()), ast.Starred(ast.Name("y", ast.Store()))])

    def constant(self) -> ast.expr:
        return ast.Constant(self.random.choice(CONSTANTS))

    def statement(self, depth: int) -> ast.stmt:
        choose, inner = self.random.choice, depth - 1
        kinds = ["assign", "assign", "expression", "augment", "delete"]
        if depth > 0:
            kinds += ["if", "for", "while", "try", "with", "match", "function", "class"]
        body = lambda: [self.statement(inner) for _ in range(self.random.randint(1, 2))]  # noqa: E731
        maybe = lambda: body() if self.random.random() < 0.4 else []  # noqa: E731
        match choose(kinds):
            case "assign":
                targets = [self.target() for _ in range(choose([1, 1, 1, 2]))]
                return ast.Assign(targets, self.expression(2))
            case "augment":
                return ast.AugAssign(
                    ast.Name(choose("xyz"), ast.Store()), self._operator(), self.expression(1)
                )
            case "delete":
                return ast.Delete([ast.Subscript(self.name(), self.expression(1), ast.Del())])
            case "if":
                return ast.If(self.expression(2), body(), maybe())
            case "for":
                return ast.For(self.target(), self.expression(1), [*body(), *self._jump()], maybe())
            case "while":
                return ast.While(self.expression(1), [*body(), *self._jump()], maybe())
            case "try":
                kind = choose([ast.Name("ValueError"), ast.Name("KeyError"), None])
                handler = ast.ExceptHandler(kind, choose(["x", None]) if kind else None, body())
                return ast.Try(body(), [handler], maybe(), maybe())
            case "with":
                item = ast.withitem(self.expression(1), choose([None, ast.Name("x", ast.Store())]))
                return ast.With([item, *choose([[], [ast.withitem(self.name(), None)]])], body())
            case "match":
                return ast.Match(self.name(), [ast.match_case(self.pattern(2), None, body())])
            case "function":
                inside: list[ast.stmt] = [
                    *self._scope_words(),
                    *body(),
                    ast.Return(self.expression(1)),
                ]
                return ast.FunctionDef("g", self.arguments(0), inside, [])
            case "class":
                return ast.ClassDef("C", choose([[], [self.name()]]), [], body(), [])
        return ast.Expr(self.expression(3))

    def _scope_words(self) -> list[ast.stmt]:
        words: list[ast.stmt] = [ast.Global([self.random.choice("xyz")]), ast.Nonlocal(["x"])]
        return [self.random.choice(words)] if self.random.random() < 0.3 else []

    def _jump(self) -> list[ast.stmt]:
        return self.random.choice([[], [], [ast.Break()], [ast.Continue()]])

    def pattern(self, depth: int) -> ast.pattern:
        choose = self.random.choice
        if depth == 0:
            return choose(
                [
                    ast.MatchValue(ast.Constant(choose([1, "a", 1.5, b"a"]))),
                    ast.MatchAs(None, None),
                    ast.MatchSingleton(choose([None, True, False])),
                    ast.MatchAs(None, choose("xyz")),
                ]
            )
        inner = [self.pattern(depth - 1) for _ in range(self.random.randint(0, 2))]
        match choose(["sequence", "mapping", "class", "or", "as", "plain"]):
            case "sequence":
                star: list[ast.pattern] = [ast.MatchStar(choose([None, "rest"]))]
                return ast.MatchSequence(inner + choose([[], star]))
            case "mapping":
                keys: list[ast.expr] = [ast.Constant(key) for key in (1, "a")[: len(inner)]]
                return ast.MatchMapping(keys, inner, choose([None, "others"]))
            case "class":
                return ast.MatchClass(ast.Name("int"), [], ["p", "q"][: len(inner)], inner)
            case "or" if len(inner) == 2:
                return ast.MatchOr(inner)
            case "as" if inner:
                return ast.MatchAs(inner[0], "x")
        return self.pattern(0)

    def _operator(self) -> ast.operator:
        return self.random.choice(BINARY + BITS)()

    def expression(self, depth: int) -> ast.expr:
        choose, inner = self.random.choice, depth - 1
        sub = lambda: self.expression(inner)  # noqa: E731
        some = lambda: [sub() for _ in range(self.random.randint(0, 3))]  # noqa: E731
        starred = lambda: [ast.Starred(x) if self.random.random() < 0.2 else x for x in some()]  # noqa: E731
        if depth <= 0:
            return choose([self.name, self.name, self.constant])()
        match self.random.randint(0, 19):
            case 0 | 1:
                return ast.BinOp(sub(), self._operator(), sub())
            case 2:
                return ast.UnaryOp(choose(UNARY)(), sub())
            case 3:
                return ast.BoolOp(
                    choose([ast.And, ast.Or])(), [sub() for _ in range(choose([2, 3]))]
                )
            case 4 | 5:
                count = choose([1, 1, 2])
                return ast.Compare(
                    sub(), [choose(COMPARE)() for _ in range(count)], [sub() for _ in range(count)]
                )
            case 6 | 7:
                keywords = [ast.keyword(choose(["p", "q", None]), x) for x in some()[:2]]
                return ast.Call(self.name(), starred(), keywords)
            case 8:
                return ast.Attribute(sub(), choose("pq"))
            case 9:
                return ast.Subscript(sub(), self._index(inner))
            case 10:
                return ast.IfExp(sub(), sub(), sub())
            case 11:
                return choose([ast.List, ast.Tuple])(starred(), ast.Load())
            case 12:
                return ast.Set(starred() or [sub()])
            case 13:
                values = some()
                keys: list[Any] = [choose([None, sub(), ast.Constant(None)]) for _ in values]
                return ast.Dict(keys, values)
            case 14:
                return ast.Lambda(self.arguments(0), sub())
            case 15 | 16:
                return self._comprehension(inner)
            case 17:
                return self._text(inner)
            case 18:
                return ast.NamedExpr(ast.Name(choose("xyz"), ast.Store()), sub())
        return choose(
            [lambda: ast.Yield(choose([None, sub()])), lambda: ast.Await(sub()), self.constant]
        )()

    def _index(self, depth: int) -> ast.expr:
        piece = lambda: self.random.choice([None, self.expression(depth), ast.Constant(None)])  # noqa: E731
        cut = lambda: ast.Slice(piece(), piece(), piece())  # noqa: E731
        return self.random.choice(
            [
                lambda: self.expression(depth),
                cut,
                lambda: ast.Tuple([cut(), self.expression(depth)], ast.Load()),
            ]
        )()

    def _comprehension(self, depth: int) -> ast.expr:
        choose = self.random.choice
        loops = [
            ast.comprehension(
                ast.Name(choose("xyz"), ast.Store()),
                self.expression(depth),
                [self.expression(depth) for _ in range(choose([0, 0, 1, 2]))],
                int(self.random.random() < 0.1),
            )
            for _ in range(choose([1, 1, 2]))
        ]
        if choose([True, False, False]):
            return ast.DictComp(self.expression(depth), self.expression(depth), loops)
        return choose([ast.ListComp, ast.SetComp, ast.GeneratorExp])(self.expression(depth), loops)

    def _text(self, depth: int) -> ast.expr:
        parts: list[ast.expr] = []
        for _ in range(self.random.randint(1, 3)):
            if self.random.random() < 0.5:
                parts.append(ast.Constant(self.random.choice(["a", "{", "}", " ", "x="])))
            spec = ast.JoinedStr([ast.Constant(self.random.choice([">3", "x"]))])
            conversion = self.random.choice([-1, 114, 115, 97])
            parts.append(
                ast.FormattedValue(
                    self.expression(depth), conversion, self.random.choice([None, spec])
                )
            )
        return ast.JoinedStr(parts)
