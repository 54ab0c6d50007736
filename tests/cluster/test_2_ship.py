"""A log is shipped from a broker's pod."""

import json

import pytest

from tests.cluster.brokers import LOG_DIR, Broker

pytestmark = pytest.mark.cluster


def test_every_rolled_segment_is_shipped(shipped: Broker) -> None:
    report = json.loads(shipped.execute(["sediment", "ship", LOG_DIR, "--output=json"]))
    assert report["outcome"] == "DONE"
    assert sum(one["copied_segments"] for one in report["partitions"]) == 0
    assert sum(one["present_segments"] for one in report["partitions"]) > 50
