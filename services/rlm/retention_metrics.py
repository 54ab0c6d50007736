"""How full partitions are by their retention.*.bytes (KIP-1257)."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.rlm.metrics import Gauge
from services.rlm.partition import Partition

_OF_PARTITION = ("topic", "partition")
RETENTION_SIZE_PERCENT = Gauge(
    "sediment_rlm_retention_size_percent",
    "What retention.bytes counts of a partition in the tier (each offset of its lineage once), and "
    "what is only here, in percent of it (Kafka: RetentionSizeInPercent). Only where that is set "
    "and above 0.",
    _OF_PARTITION,
)
LOCAL_RETENTION_SIZE_PERCENT = Gauge(
    "sediment_rlm_local_retention_size_percent",
    "The local log of a partition in percent of its local.retention.bytes, or of retention.bytes "
    "where that is not set (Kafka: LocalRetentionSizeInPercent). Only where one is above 0.",
    _OF_PARTITION,
)


class RetentionCollector(Collector):
    """Of each partition led here that has a limit, as its latest passes saw it: a scrape asks
    neither disk nor RLMM."""

    def __init__(self, led_partitions: Callable[[], Iterable[Partition]]) -> None:
        self._led_partitions = led_partitions

    def collect(self) -> Iterator[GaugeMetricFamily]:
        whole, local = RETENTION_SIZE_PERCENT.family(), LOCAL_RETENTION_SIZE_PERCENT.family()
        for partition in self._led_partitions():
            if partition.topic_config is None or partition.drafted is None:
                continue
            config, drafted = partition.topic_config.config, partition.drafted
            name = partition.topic_id_partition
            labels = (name.topic, str(name.partition))
            limit_bytes = config.retention_bytes
            if limit_bytes > 0:
                # Less may be there by now than was not counted.
                tier_bytes = max(drafted.tier.size_bytes - partition.uncounted_bytes, 0)
                size_bytes = drafted.report.only_local_bytes + tier_bytes
                whole.add_metric(labels, percent(size_bytes, limit_bytes))
            limit_bytes = config.effective_local_retention_bytes
            if limit_bytes > 0:
                local.add_metric(labels, percent(drafted.log.size_bytes, limit_bytes))
        yield whole
        yield local


def percent(size_bytes: int, limit_bytes: int) -> int:
    """As Kafka's: without its fraction."""
    return size_bytes * 100 // limit_bytes
