"""A log is shipped from a broker's pod and read back through RLM beside it."""

import base64
import json
from typing import Any

import pytest

from tests.cluster.brokers import LOG_DIR, Broker
from tests.cluster.records import Record

pytestmark = pytest.mark.cluster

PARTITIONS = ["clicks-0", "mixed-codecs-0", "payments-0", "telemetry-0"]


def test_every_rolled_segment_is_shipped(shipped: Broker) -> None:
    report = json.loads(shipped.execute(["sediment", "ship", LOG_DIR, "--output=json"]))
    assert report["outcome"] == "DONE"
    assert sum(one["copied_segments"] for one in report["partitions"]) == 0
    assert sum(one["present_segments"] for one in report["partitions"]) > 50


@pytest.mark.parametrize("partition", PARTITIONS)
def test_records_come_back_as_they_were(
    partition: str, rlm_beside: Broker, lost: dict[str, list[Record]]
) -> None:
    """Read records whose local copy is lost, and compare each with the broker's own files."""
    expected = lost[partition]
    last = expected[-1].offset
    read = ["sediment", "fetch", partition, "--from=beginning", f"--to={last + 1}", "--output=json"]
    printed = rlm_beside.execute([*read, "--rlm=127.0.0.1:50051"])
    found = [json.loads(line) for line in printed.splitlines()]
    assert [_record(one) for one in found] == expected
    assert {one["source"] for one in found} == {"REMOTE"}


def _record(printed: dict[str, Any]) -> Record:
    headers = tuple((header["key"], _bytes(header, "value")) for header in printed["headers"])
    key, value = _bytes(printed, "key"), _bytes(printed, "value")
    return Record(printed["offset"], printed["timestamp_ms"], key, value, headers)


def _bytes(printed: dict[str, Any], name: str) -> bytes | None:
    encoded = printed.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(encoded)
    text = printed[name]
    return None if text is None else str(text).encode()
