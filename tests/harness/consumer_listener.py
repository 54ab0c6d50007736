"""Serve an RLM of a test to consumers of Kafka."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from services.local.process import LOOPBACK
from services.rlm.consumers.catalog import ConsumedLog
from services.rlm.consumers.listener import Anyone, ConsumerLimits, ConsumerListener, Peers

NODE_ID = 7


@contextmanager
def serving_consumers(rlm: ConsumedLog, peers: Peers | None = None, **limits: Any) -> Iterator[str]:
    """Serve consumers in this process; yield HOST:PORT."""
    made = ConsumerLimits(**limits)
    listener = ConsumerListener(rlm, (LOOPBACK, 0), peers or Anyone(), NODE_ID, limits=made)
    listener.start()
    try:
        yield listener.address
    finally:
        listener.stop()
