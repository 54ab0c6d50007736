"""A client's `sasl.jaas.config`: Kafka's JaasConfig, which reads it with Java's StreamTokenizer.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";

No error repeats any of the text: where a quote is missing, any of it may be the password.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_CONTROL_FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
_TOKEN = re.compile(
    r"""
    (?P<skipped> [\x00-\x20]+ | //[^\r\n]* | /\*.*?\*/ )
    | (?P<quoted> "(?:[^"\\\r\n]|\\[^\r\n])*" | '(?:[^'\\\r\n]|\\[^\r\n])*' )
    | (?P<word> [A-Za-z_$\xa0-\U0010ffff][-A-Za-z0-9_.$\xa0-\U0010ffff]* )
    | (?P<mark> [=;] )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)")
_NAMED_ESCAPES = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """One login module, and what it is told; of a repeated option the last counts."""

    login_module: str
    options: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str = field(repr=False)
    at: int


def parse_jaas(text: str) -> JaasEntry:
    """
    Raises:
        ValueError: it is not one entry; tells at which character, and repeats none of it.
    """
    tokens = _tokens(text)
    module = next(tokens)
    if module.kind != "word":
        raise _wrong(module, "a login module's class is expected")
    flag = next(tokens)
    if flag.text.lower() not in _CONTROL_FLAGS:
        raise _wrong(flag, "`required` is expected")
    options = {}
    while (name := next(tokens)).text != ";" or name.kind != "mark":
        if name.kind != "word":
            raise _wrong(name, "an option's name, or a `;` at the end, is expected")
        if (sign := next(tokens)).text != "=" or sign.kind != "mark":
            raise _wrong(sign, "a `=` is expected; a value with blanks needs quotes")
        value = next(tokens)
        if value.kind not in ("word", "quoted"):
            raise _wrong(value, "a value is expected; put it in quotes")
        options[name.text] = value.text
    if (more := next(tokens)).kind != "end":
        raise _wrong(more, "more than one login module")
    return JaasEntry(module.text, options)


def _tokens(text: str) -> Iterator[_Token]:
    """The last is of the kind "end"."""
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(
                f"at character {at + 1}: neither a word nor quoted; a value that does not begin "
                "with a letter, or has other signs than -_.$, needs quotes, and quotes an end"
            )
        kind = str(match.lastgroup)
        if kind == "quoted":
            yield _Token(kind, _ESCAPE.sub(_unescaped, match[0][1:-1]), at)
        elif kind != "skipped":
            yield _Token(kind, match[0], at)
        at = match.end()
    yield _Token("end", "", at)


def _unescaped(match: re.Match[str]) -> str:
    escaped = match[1]
    if escaped[0] in "01234567":
        return chr(int(escaped, 8))
    return _NAMED_ESCAPES.get(escaped, escaped)


def _wrong(token: _Token, what: str) -> ValueError:
    where = "at its end" if token.kind == "end" else f"at character {token.at + 1}"
    return ValueError(f"{where}: {what}")
