"""Consumes a partition from its start to its end, again and again, whatever happens to brokers."""

from contextlib import closing

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from services.api.ids import TopicIdPartition
from tests.harness.eventually import Background
from tests.harness.kafka_client import Cluster
from tests.kafka.records import SeenRecord, of_message

_POLL_S = 0.5
_PAUSE_S = 0.5
_SHOWN = 5


class ConstantConsumer(Background):
    """A consumer that retries after errors while it is entered, and accepts no wrong answer.

    An offset that is out of range is a wrong answer too: nothing expires meanwhile.

    Attributes:
        seen: every record by its offset, as the first pass that reached it had it.
        passes: how often the end was reached.
        failures: a sentence for each wrong answer, the first few.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: TopicIdPartition,
        isolation_level: str,
        pause_s: float = _PAUSE_S,
    ) -> None:
        super().__init__()
        self._pause_s = pause_s
        self._cluster = cluster
        self.name = name
        self.isolation_level = isolation_level
        self.seen: dict[int, SeenRecord] = {}
        self.passes = 0
        self.failures: list[str] = []

    def __str__(self) -> str:
        return f"{self.name.topic}-{self.name.partition} {self.isolation_level}"

    def run(self) -> None:
        start = TopicPartition(self.name.topic, self.name.partition, OFFSET_BEGINNING)
        settings = {"auto.offset.reset": "error", "reconnect.backoff.max.ms": 200}
        with closing(self._cluster.consumer(self.isolation_level, **settings)) as consumer:
            while not self.wait(self._pause_s) and len(self.failures) < _SHOWN:
                consumer.assign([start])
                self._pass(consumer)

    def _pass(self, consumer: Consumer) -> None:
        last = -1
        while not self.wait(0):
            message = consumer.poll(_POLL_S)
            error = None if message is None else message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self.passes += 1
                    return
                if error.code() == KafkaError._AUTO_OFFSET_RESET:
                    self.failures.append(f"{self}: {error}")
                    return
            elif message is not None:
                record = of_message(message)
                if record.offset <= last:
                    self.failures.append(f"{self}: {record.offset} after {last}")
                last = record.offset
                if self.seen.setdefault(record.offset, record) != record:
                    self.failures.append(f"{self}: another record at {record.offset}")
