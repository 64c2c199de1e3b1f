"""Redacts text before it is stored or shown: passwords, tokens, and signatures of URLs.

A secret is recognised by its name (``sig=``, ``--token``, ``X-Amz-Signature``), by its place (the
user in a URL), or because an environment variable with a secret name holds it. In doubt, text is
redacted.

What Temper writes passes here: a record of its own is composed by :func:`record`, and a log by
:func:`redact_log`. A test holds modules that write files to that.
"""

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import IO, Any
from urllib.parse import quote, unquote

_SECRET_NAME = re.compile(
    r"(token|secrets?|passwords?|passwd|passphrase|pwd|credentials?|authorization|signature)(?![a-z])"
    r"|(?<![a-z])(auth|key|sig|pw)$|(api|access|secret|private|account)key$"
    r"|access_?key_?id$|access_?id$"
)
_NAMED = re.compile(r"""(?<![\w.+~?&-])([\w.+~-]+)["']?\s*[=:]\s*(?=\S)""")
_PARAMETER = re.compile(r"""([?&;])([\w.-]+)=([^&\s"'#]+)""")
_SHORTEST = 4
"""In letters; shorter secrets are not searched for, since they occur in other text by chance."""
_SHORTEST_KEY = 16
_KEY = re.compile(r"(?![./~<])(?!\d+$)(?!.*://)\S+")
"""What a key in the environment looks like. Paths and URLs only say where keys are, numbers and
short words occur in other text by chance, and ``<|pad|>`` is a token of a model."""
_NAME_OF_KEY = re.compile(r"((api|access|secret)_?key|token|password|passwd|passphrase|pwd)$")
_WORD = r"(?:[A-Z]?[a-z]+|[A-Z]+|\d+)(?![A-Za-z0-9])"
_RANDOM = re.compile(rf"(?!{_WORD})[A-Za-z0-9]{{16,}}")
_FLAG = re.compile(r"--?[\w.-]+|(?i:bearer)")
_BEARER = re.compile(r"\b([bB](?i:earer)\s+)\S+")
_USER_INFO = re.compile(
    r"(?i)(\bhttps?:/{1,2})[^\s/?#]+@"  # a token alone; one slash where it was read as a path
    r"|(:/{1,2})(?:[^\s/?#]*:[^\s/?#]*@|[^\s/?#:@]*:(?!\d+[/?#])[^\s@]*@)"  # S3 keys have "/"
)


_GIVEN = re.compile(
    r"[taspcTASPC](?i:(?<=t)oken|(?<=p)(?:assw(?:or)?d|assphrase|wd)|(?<=s)ecret|(?<=c)redentials?"
    r"|(?<=a)uthorization|(?<=[as])(?:pi|ccess|ecret|ccount)[_-]?key|(?<=p)rivate[_-]?key)"
    r"""(?:(["']\s*,\s*["'])|["']?(?:\s*[:=]\s*["']?(?:[A-Za-z]+ )?|\s+["']?))([^\s"'&;,\0]+)"""
)
"""A value after a secret name: of an option, a header, an assignment, or in a list of words."""
_LIKE_A_KEY = re.compile(r"(?=.*\d).{12,}")

_MET: set[str] = set()
"""Secrets from URLs that this process uses, since an error may contain them without the URL."""


def meet(text: str) -> None:
    """Redact the secrets in this text wherever they occur from now on."""
    for secret in _secrets_in(text):
        _MET.update((secret, unquote(secret), quote(unquote(secret), safe="")))


def _secrets_in(text: str) -> list[str]:
    found = [match[3] for match in _PARAMETER.finditer(text) if is_secret(match[2])]
    for match in _USER_INFO.finditer(text):
        user = match[0].partition("://")[2].removesuffix("@")
        found += [user, user.partition(":")[2]]
    return [secret for secret in found if len(secret) >= _SHORTEST]


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line for the record: the value of an option or setting with a secret name is ``…``.

    In doubt it is redacted: everything after such a name within an argument.
    """
    kept: list[str] = []
    for before, argument in zip(("", *arguments), arguments, strict=False):
        follows = _FLAG.fullmatch(before) and (is_secret(before) or before.lower() == "bearer")
        if follows and not argument.startswith("-"):
            kept.append("…")
        else:
            kept.append(_up_to_secret(shown(argument)))
    return kept


def shown(text: str, keys: Sequence[str] | None = None) -> str:
    """A text without what `in_urls` redacts and without values that secret names precede, as in
    ``--token x``, ``X-Api-Key: x`` and ``password=x``."""
    text = in_urls(text, keys)
    return text if text.isalnum() else _GIVEN.sub(_without_value, text)  # a name needs a separator


def _without_value(found: re.Match[str]) -> str:
    is_word_of_command, value = found[1], found[2]
    if _KEY.fullmatch(value) and (is_word_of_command or _LIKE_A_KEY.fullmatch(value)):
        return f"{found[0][: -len(value)]}…"
    return found[0]


def in_urls(text: str, keys: Sequence[str] | None = None) -> str:
    """A text without users and passwords in URLs, signatures of URLs, bearer tokens, and the keys
    that environment variables such as ``OPENAI_API_KEY`` hold.

    Args:
        keys: all keys that are known, for a caller with many texts.
    """
    for key in _known_keys() if keys is None else keys:
        text = text.replace(key, "…")
    if "@" in text:
        text = _USER_INFO.sub(lambda found: f"{found[1] or found[2]}…@", text)
    if "=" in text:
        text = _PARAMETER.sub(
            lambda found: f"{found[1]}{found[2]}=…" if is_secret(found[2]) else found[0], text
        )
    return text if text.isalnum() else _BEARER.sub(r"\1…", text)


def _known_keys() -> list[str]:
    return sorted(_MET.union(key for _, key in _keys_of_environment()), key=len, reverse=True)


def record(value: Any, exact: Collection[str] = (), indent: int | None = None) -> bytes:
    """The JSON of one of Temper's own records, with every text redacted.

    Args:
        exact: fields of the value that hold names of files and digests. They are written as they
            are: changed, the record would be one of other files or of another key.
    """
    texts = _Shown(_known_keys())
    if exact:
        value = {n: v if n in exact else _redacted(v, texts) for n, v in value.items()}
        return exact_record(value, indent)
    return exact_record(_redacted(value, texts), indent)


def exact_record(value: Any, indent: int | None = None) -> bytes:
    """The JSON of a record that holds only names of files, digests and numbers, or whose texts are
    redacted already."""
    return json.dumps(value, indent=indent, default=_fields).encode()


def _fields(value: Any) -> dict[str, Any]:
    """Not ``vars``, which holds what a cached property has computed, too."""
    return {one.name: getattr(value, one.name) for one in fields(value)}


class _Shown(dict[str, str]):
    """Texts redacted, each once: a record repeats the names of its fields."""

    def __init__(self, keys: Sequence[str]):
        self._keys = keys

    def __missing__(self, text: str) -> str:
        self[text] = redacted = shown(text, self._keys)
        return redacted


def _redacted(value: Any, texts: _Shown) -> Any:
    if isinstance(value, str):
        return texts[value]
    if isinstance(value, dict):
        return {_redacted(name, texts): _redacted(inner, texts) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(inner, texts) for inner in value]
    return value


def shown_output(output: bytes) -> bytes:
    """The output of a step, redacted."""
    return shown(output.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def redact_log(path: str) -> None:
    """Redact a file in place; one without secrets is only read."""
    with open(path, "rb") as file, contextlib.suppress(StopIteration):
        next(block for block in _blocks(file) if shown_output(block) != block)
        file.seek(0)
        with open(f"{path}.new", "wb") as redacted:
            redacted.writelines(map(shown_output, _blocks(file)))
        os.replace(f"{path}.new", path)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    return map(b"".join, iter(lambda: file.readlines(2**20), []))


def variable_in(text: str) -> str | None:
    """The environment variable whose key JSON text contains, if there is one."""
    keys = _keys_of_environment()
    return next((name for name, key in keys if json.dumps(key)[1:-1] in text), None)


def _keys_of_environment() -> Iterator[tuple[str, str]]:
    """The environment variables that hold keys, with the keys.

    ``CACHE_KEY`` may hold a branch, and ``TOKEN_CLASSIFIER`` a model. Variables with such names
    count only if the value looks random.
    """
    for name in os.environ:
        if not may_hold_key(name):
            continue
        value = os.environ.get(name, "")  # another thread may have removed it
        if len(value) < _SHORTEST_KEY or not _KEY.fullmatch(value):
            continue
        if _NAME_OF_KEY.search(_without_number(name)) or _RANDOM.search(value):
            yield name, value


@lru_cache(4096)
def may_hold_key(name: str) -> bool:
    """Whether an environment variable with this name may hold a key of a service."""
    return is_secret(_without_number(name))


def _without_number(name: str) -> str:
    """A variable's name, also of one among several, as in ``OPENAI_API_KEY_2``."""
    return name.lower().rstrip("_0123456789")


def _up_to_secret(argument: str) -> str:
    for named in _NAMED.finditer(argument):
        if is_secret(named[1]):
            return f"{argument[: named.end()]}…"
    return argument


@lru_cache(4096)
def is_secret(name: str) -> bool:
    """Whether the value of an option or setting with this name should be redacted."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return _SECRET_NAME.search(words) is not None
