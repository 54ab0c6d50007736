"""How busy RLM's pools of threads are, at the moment of a scrape."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.rlm.metrics import Gauge
from services.rlm.reading.reader_turns import ReaderTurns
from services.rlm.scheduler import Scheduler

TASKS_IDLE_RATIO = Gauge(
    "sediment_rlm_tasks_idle_ratio",
    "Threads of a pool that run no task, 0 to 1 (Kafka: RemoteLogManagerTasksAvgIdlePercent). At 0 "
    "for long: tasks wait for threads.",
    ("pool",),
)
REMOTE_READER_IDLE_RATIO = Gauge(
    "sediment_rlm_remote_log_reader_idle_ratio",
    "Of RLM_REMOTE_LOG_READER_THREADS, those that read nothing from the tier, 0 to 1 (Kafka: "
    "RemoteLogReaderAvgIdlePercent).",
    (),
)
REMOTE_READER_QUEUE_SIZE = Gauge(
    "sediment_rlm_remote_log_reader_task_queue_size",
    "Reads of the tier that wait for a reader (Kafka: RemoteLogReaderTaskQueueSize).",
    (),
)


class PoolCollector(Collector):
    """
    Args:
        readers: of the tier.
    """

    def __init__(self, schedulers: Sequence[Scheduler], readers: ReaderTurns) -> None:
        self._schedulers = schedulers
        self._readers = readers

    def collect(self) -> Iterator[GaugeMetricFamily]:
        tasks = TASKS_IDLE_RATIO.family()
        for scheduler in self._schedulers:
            tasks.add_metric([scheduler.name], scheduler.idle_ratio)
        yield tasks
        for gauge, value in (
            (REMOTE_READER_IDLE_RATIO, self._readers.idle_ratio),
            (REMOTE_READER_QUEUE_SIZE, self._readers.waiting),
        ):
            family = gauge.family()
            family.add_metric((), value)
            yield family
