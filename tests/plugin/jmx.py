"""Read the figures that a broker shows over JMX."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from demos.kafka_broker import KafkaBroker, find_java

OBJECTS = ("kafka.server:type=BrokerTopicMetrics,*", "io.sediment.kafka:*")
_TIMEOUT_S = 120.0

Figures = Mapping[tuple[str, str], float]
"""Values by object name and attribute; a flag is 0 or 1."""


def read_jmx(broker: KafkaBroker) -> Figures:
    """Read Kafka's figures of topics, and all of the plugin."""
    source = Path(__file__).with_name("ReadJmx.java")
    done = subprocess.run(
        [find_java(), str(source), str(broker.pid), *OBJECTS],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures: dict[tuple[str, str], float] = {}
    for line in done.stdout.splitlines():
        name, attribute, value = line.split("\t")
        figures[name, attribute] = float({"true": "1", "false": "0"}.get(value, value))
    return figures
