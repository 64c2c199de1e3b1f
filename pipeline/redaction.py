"""Texts as they may be kept or shown: without passwords, tokens and the signatures of URLs.

A name says what is secret (``sig=``, ``--token``, ``X-Amz-Signature``), or its place (the user in a
URL). Rather too much is left out than too little.
"""

import re
from collections.abc import Sequence
from urllib.parse import quote, unquote

_SECRET_NAME = re.compile(
    r"(token|secrets?|passwords?|passwd|passphrase|pwd|credentials?|authorization|signature)(?![a-z])"
    r"|(?<![a-z])(auth|key|sig|pw)$|(api|access|secret|private|account)key$"
    r"|access_?key_?id$|access_?id$"
)
_NAMED = re.compile(r"""(?<![\w.+~?&-])([\w.+~-]+)["']?\s*[=:]\s*(?=\S)""")
_PARAMETER = re.compile(r"""([?&;])([\w.-]+)=([^&\s"'#]+)""")
_SHORTEST = 4
"""Letters; what is shorter stands in many texts for something else."""
_FLAG = re.compile(r"--?[\w.-]+|(?i:bearer)")
_BEARER = re.compile(r"(?i)\b(bearer\s+)\S+")
_USER_INFO = re.compile(
    r"(?i)(\bhttps?://)[^\s/?#]+@"  # a token alone, too
    r"|(://)(?:[^\s/?#]*:[^\s/?#]*@|[^\s/?#:@]*:(?!\d+[/?#])[^\s@]*@)"  # as S3 has, with slashes
)


_MET: set[str] = set()
"""Secrets of URLs that this process works with: an error may name them without their URL."""


def meet(text: str) -> None:
    """Leave the secrets of this text out of every text from now on, however they stand there."""
    for secret in _secrets_in(text):
        _MET.update((secret, unquote(secret), quote(unquote(secret), safe="")))


def _secrets_in(text: str) -> list[str]:
    found = [match[3] for match in _PARAMETER.finditer(text) if is_secret(match[2])]
    for match in _USER_INFO.finditer(text):
        user = match[0].partition("://")[2].removesuffix("@")
        found += [user, user.partition(":")[2]]
    return [secret for secret in found if len(secret) >= _SHORTEST]


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line as it may be kept: what a name or a flag says is secret is ``…``.

    Rather too much than too little: the rest of an argument goes with what follows such a name.
    """
    kept: list[str] = []
    for before, argument in zip(("", *arguments), arguments, strict=False):
        follows = _FLAG.fullmatch(before) and (is_secret(before) or before.lower() == "bearer")
        if follows and not argument.startswith("-"):
            kept.append("…")
        else:
            kept.append(_up_to_secret(shown(argument)))
    return kept


def shown(text: str) -> str:
    """A text without users and passwords in URLs, signatures of URLs, and bearer tokens."""
    for secret in sorted(_MET, key=len, reverse=True):
        text = text.replace(secret, "…")
    text = _USER_INFO.sub(lambda found: f"{found[1] or found[2]}…@", text)
    text = _PARAMETER.sub(
        lambda found: f"{found[1]}{found[2]}=…" if is_secret(found[2]) else found[0], text
    )
    return _BEARER.sub(r"\1…", text)


def _up_to_secret(argument: str) -> str:
    for named in _NAMED.finditer(argument):
        if is_secret(named[1]):
            return f"{argument[: named.end()]}…"
    return argument


def is_secret(name: str) -> bool:
    """Whether what is called so is rather not shown to anybody."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return _SECRET_NAME.search(words) is not None
