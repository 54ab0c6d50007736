"""Let clients in a broker's pod call both services, while a test does something to them."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.brokers import Broker

_STOP_TIMEOUT_S = 120.0
"""Of the clients: the longest call with its retries."""


@contextmanager
def load(broker: Broker) -> Iterator[None]:
    """Run load.py in the broker's pod, and fail if one of its calls fails."""
    source = (Path(__file__).parent / "load.py").read_text()
    with subprocess.Popen(
        broker.execution(["python", "-c", source]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as clients:
        assert clients.stdout is not None
        try:
            assert clients.stdout.readline() == "begun\n"
            yield
            printed, _ = clients.communicate(timeout=_STOP_TIMEOUT_S)
        finally:
            clients.kill()
    result = json.loads(printed)
    failures = "\n".join(result["failures"])
    assert not failures, failures
    assert result["calls"] > 0
