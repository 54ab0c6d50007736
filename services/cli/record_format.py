"""Print a record by a format of kcat: `-f '%o %k %s\\n'`."""

import re
from collections.abc import Callable
from struct import Struct

from services.api.ids import TopicIdPartition
from services.cli.output import CommandError
from services.client.records import Record

FORMAT_HELP = (
    "Print each record by a format of kcat: %t topic, %p partition, %o offset, %k key, %s value, "
    "%h headers, %T time in ms, %K and %S lengths of key and value (-1: null), %R the latter "
    r"as four bytes, %% a percent sign; also \n, \t, \r, \\ and \xNN."
)

_INT = Struct(">i")
_TOKEN = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\"}

Field = Callable[[TopicIdPartition, Record], bytes]


def _text(value: Callable[[TopicIdPartition, Record], object]) -> Field:
    return lambda tp, record: str(value(tp, record)).encode()


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(tp: TopicIdPartition, record: Record) -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"NULL" if value is None else value)
        for name, value in record.headers
    )


_FIELDS: dict[str, Field] = {
    "t": _text(lambda tp, record: tp.topic),
    "p": _text(lambda tp, record: tp.partition),
    "o": _text(lambda tp, record: record.offset),
    "T": _text(lambda tp, record: record.timestamp_ms),
    "k": lambda tp, record: record.key or b"",
    "s": lambda tp, record: record.value or b"",
    "K": _text(lambda tp, record: _length(record.key)),
    "S": _text(lambda tp, record: _length(record.value)),
    "R": lambda tp, record: _INT.pack(_length(record.value)),
    "h": _headers,
    "%": lambda tp, record: b"%",
}


def parse_format(text: str) -> Callable[[TopicIdPartition, Record], bytes]:
    """Return the function that formats a record.

    Raises:
        CommandError: a token is none of kcat's.
    """
    parts: list[bytes | Field] = []
    at = 0
    for token in _TOKEN.finditer(text):
        parts += [text[at : token.start()].encode(), _part(token)]
        at = token.end()
    parts.append(text[at:].encode())

    def formatted(tp: TopicIdPartition, record: Record) -> bytes:
        return b"".join(p if isinstance(p, bytes) else p(tp, record) for p in parts)

    return formatted


def _part(token: "re.Match[str]") -> bytes | Field:
    field, escape = token.groups()
    if field is not None:
        if field in _FIELDS:
            return _FIELDS[field]
    elif escape in _ESCAPES:
        return _ESCAPES[escape]
    elif len(escape) == 3:
        return bytes.fromhex(escape[1:])
    raise CommandError(f"-f: {token.group()!r} is no token; {FORMAT_HELP}")
