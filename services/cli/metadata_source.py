"""Read a metadata topic and its cluster for `sediment metadata`, with kafka-python."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from uuid import UUID

from services.api.ids import ZERO_UUID
from services.cli.output import EXIT_FAILED, CommandError
from services.interop.metadata_fold import TopicRecord

_POLL_MS = 1_000
_RECORDS_PER_POLL = 2_000
_MAX_CONFIG_BYTES = 1024 * 1024

T = TypeVar("T")


class KafkaSource:
    """A cluster with its metadata topic; may be used by several threads.

    Every method raises CommandError if the cluster is away or refuses.
    """

    def __init__(self, server: str, topic: str, config: Path | None = None) -> None:
        """Ask the cluster for its id and the topic's.

        Raises:
            CommandError: the topic is not there, or the cluster is away.
        """
        self._server = server
        self._topic = topic
        self._options = options_of(config) if config else {}
        self._idle: SimpleQueue[Any] = SimpleQueue()
        self._producer: Any = None
        self.cluster_id = str(self._admin(lambda admin: admin.describe_cluster())["cluster_id"])
        topic_id = self.topic_ids().get(topic)
        if topic_id is None:
            raise CommandError(f"{server} has no topic {topic}, or it may not be read")
        self.topic_id = topic_id

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
        while not self._idle.empty():
            self._idle.get().close()

    def ranges(self) -> Mapping[int, tuple[int, int]]:
        from kafka import TopicPartition

        with self._consumer() as consumer:
            numbers = consumer.partitions_for_topic(self._topic) or ()
            partitions = [TopicPartition(self._topic, number) for number in sorted(numbers)]
            firsts = consumer.beginning_offsets(partitions)
            ends = consumer.end_offsets(partitions)
            return {each.partition: (firsts[each], ends[each]) for each in partitions}

    def records(self, partition: int, first: int, end: int) -> Iterator[Sequence[TopicRecord]]:
        from kafka import TopicPartition

        tp = TopicPartition(self._topic, partition)
        with self._consumer() as consumer:
            consumer.assign([tp])
            consumer.seek(tp, first)
            while consumer.position(tp) < end:
                polled = consumer.poll(timeout_ms=_POLL_MS).get(tp, ())
                yield [
                    TopicRecord(partition, each.offset, each.key, each.value)
                    for each in polled
                    if each.offset < end
                ]

    def write(self, records: Sequence[tuple[int, bytes | None, bytes | None]]) -> None:
        """Append records, of a partition in their order; they are durable when it returns."""
        from kafka import KafkaProducer

        with _reported(self._server):
            if self._producer is None:
                self._producer = KafkaProducer(
                    bootstrap_servers=self._server,
                    acks="all",
                    enable_idempotence=True,
                    linger_ms=5,
                    **self._options,
                )
            sent = [
                self._producer.send(self._topic, value, key=key, partition=partition)
                for partition, key, value in records
            ]
            self._producer.flush()
            for each in sent:
                each.get(timeout=0)

    def topic_ids(self) -> Mapping[str, UUID]:
        topics = self._admin(lambda admin: admin.describe_topics())
        ids = {str(each["name"]): _uuid(each.get("topic_id")) for each in topics}
        return {name: id for name, id in ids.items() if id is not None}

    def copying_topics(self, topics: Collection[str]) -> list[str]:
        """Return the tiered topics, of these or of all, whose rolled segments are copied.

        Raises:
            CommandError: a topic does not show the setting.
        """
        from kafka.admin import ConfigResource, ConfigResourceType

        names = [name for name in self.topic_ids() if not topics or name in topics]
        wanted = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        found = self._admin(lambda admin: admin.describe_configs(wanted, config_filter="all"))
        copying = []
        for name in names:
            config = found["topic"][name]
            values = {key: str(each["value"]).lower() for key, each in config.items()}
            if not {"remote.storage.enable", "remote.log.copy.disable"} <= values.keys():
                text = (
                    f"topic {name} does not show remote.log.copy.disable: its brokers are older "
                    "than Kafka 3.9, or DESCRIBE_CONFIGS on the topic is missing"
                )
                raise CommandError(f"{self._server}: {text}", EXIT_FAILED)
            is_tiered = values["remote.storage.enable"] == "true"
            if is_tiered and values["remote.log.copy.disable"] != "true":
                copying.append(name)
        return copying

    def log_starts(self, partitions: Collection[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
        from kafka import TopicPartition

        with self._consumer() as consumer:
            there = [
                TopicPartition(topic, number)
                for topic, number in partitions
                if number in (consumer.partitions_for_topic(topic) or ())
            ]
            offsets = consumer.beginning_offsets(there) if there else {}
            return {(each.topic, each.partition): offsets[each] for each in there}

    @contextmanager
    def _consumer(self) -> Iterator[Any]:
        """Lend an idle consumer, or a new one; one that failed is closed."""
        from kafka import KafkaConsumer

        with _reported(self._server):
            try:
                consumer = self._idle.get_nowait()
            except Empty:
                consumer = KafkaConsumer(
                    bootstrap_servers=self._server,
                    enable_auto_commit=False,
                    group_id=None,
                    max_poll_records=_RECORDS_PER_POLL,
                    **self._options,
                )
            try:
                yield consumer
            except BaseException:
                consumer.close()
                raise
            self._idle.put(consumer)

    def _admin(self, ask: Callable[[Any], T]) -> T:
        from kafka import KafkaAdminClient

        with _reported(self._server):
            admin = KafkaAdminClient(bootstrap_servers=self._server, **self._options)
            try:
                return ask(admin)
            finally:
                admin.close()


@contextmanager
def _reported(server: str) -> Iterator[None]:
    from kafka.errors import KafkaError

    try:
        yield
    except (KafkaError, AssertionError) as e:
        raise CommandError(f"{server}: {e}", EXIT_FAILED) from e


def _uuid(value: object) -> UUID | None:
    """Return a topic's id; None from a broker before Kafka 2.8."""
    id = value if isinstance(value, UUID) else UUID(str(value)) if value else None
    return None if id == ZERO_UUID else id


def options_of(config: Path) -> dict[str, str]:
    """Read a file of properties; kafka-python has Kafka's names, with _ for the dots."""
    try:
        if config.stat().st_size > _MAX_CONFIG_BYTES:
            raise CommandError(f"{config}: has more than {_MAX_CONFIG_BYTES} bytes")
        text = config.read_text("utf-8")
    except OSError as e:
        raise CommandError(f"{config}: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise CommandError(f"{config}: is not UTF-8") from e
    lines = [line.strip() for line in text.splitlines()]
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#!")
    return {name.strip().replace(".", "_"): value.strip() for name, _, value in pairs}
