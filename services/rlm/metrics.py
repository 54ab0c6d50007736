"""RLM's metrics, in Prometheus' own registry."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Protocol

from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.api.ids import TopicIdPartition

COPIED_SEGMENTS = Counter("sediment_rlm_copied_segments", "Segments copied by this process.")
COPIED_BYTES = Counter("sediment_rlm_copied_bytes", "Bytes of logs copied by this process.")
LOST_RANGES = Counter(
    "sediment_rlm_lost_ranges",
    "Ranges of offsets that the broker deleted before they were copied, recorded by this process.",
)
DELETED_SEGMENTS = Counter(
    "sediment_rlm_deleted_segments", "Segments deleted from the tier by this process's retention."
)
DELETED_BYTES = Counter(
    "sediment_rlm_deleted_bytes", "Bytes of logs deleted from the tier by retention."
)


class TellsAges(Protocol):
    """A Scheduler."""

    def seconds_since_last_success(self) -> Mapping[Hashable, float]: ...


class LastSuccessCollector(Collector):
    """Of each partition that has a task now, how long ago its last good pass was: asked for when
    it is scraped, so that a partition that goes takes its labels along.

    Args:
        name: of the metric, one for each scheduler.
    """

    def __init__(
        self, scheduler: TellsAges, name: str = "sediment_rlm_seconds_since_last_success"
    ) -> None:
        self._scheduler = scheduler
        self._name = name

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauge = GaugeMetricFamily(
            self._name,
            "Since a partition's last pass that did all that can be done; since it was found, where"
            " there was none.",
            labels=["topic", "partition"],
        )
        for key, age_s in self._scheduler.seconds_since_last_success().items():
            if isinstance(key, TopicIdPartition):
                gauge.add_metric([key.topic, str(key.partition)], age_s)
        yield gauge
