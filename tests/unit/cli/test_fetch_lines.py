"""Test that keys, values and headers are printed unambiguously."""

import pytest

from services.api.remote_log_manager import RecordSource
from services.cli.fetch import printed, shown
from services.client.records import Record


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, "null"),
        (b"null", '"null"'),
        (b"", '""'),
        (b"plain", "plain"),
        (b'"quoted"', r'"\"quoted\""'),
        (b"\xff", "base64:/w=="),
        (b"base64:/w==", '"base64:/w=="'),
    ],
)
def test_null_text_and_other_bytes_differ(data: bytes | None, text: str) -> None:
    assert shown(data) == text


def test_json_has_headers_and_the_epoch() -> None:
    record = Record(7, 5, None, b"v", (("a", b"1"), ("b", None)), 3, RecordSource.LOCAL)
    assert printed(record) == {
        "offset": 7,
        "timestamp_ms": 5,
        "key": None,
        "value": "v",
        "headers": [{"name": "a", "value": "1"}, {"name": "b", "value": None}],
        "leader_epoch": 3,
        "source": "LOCAL",
        "kind": "DATA",
    }
