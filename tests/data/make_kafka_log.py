"""Makes ``kafka-log/`` and ``kafka-log.records.jsonl.gz``, beside this file, with a real Kafka.

    python -m tests.data.make_kafka_log

Keys, values, headers, timestamps and batch boundaries are the same in each run; ids that Kafka
draws (cluster, directory, topics, producers) and the times in ``audit`` and ``payments`` are not.
What each topic is for stands in README.md; ``_check`` refuses a log that lacks what is promised
there.
"""

import base64
import gzip
import json
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from tests.data.kafka_log_content import ROUNDS, TOPICS, produce_round, raise_log_start
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import Cluster, headers_of

HERE = Path(__file__).resolve().parent
LOG_DIR = HERE / "kafka-log"
RECORDS = HERE / "kafka-log.records.jsonl.gz"
TOTAL_LIMIT_BYTES = 4 << 20
FILE_LIMIT_BYTES = 1 << 20


def _read_records(cluster: Cluster) -> Iterator[dict[str, object]]:
    for topic in TOPICS:
        for partition in range(topic.partitions):
            committed = {m.offset() for m in cluster.read(topic.name, partition, "read_committed")}
            for message in cluster.read(topic.name, partition, "read_uncommitted"):
                timestamp_type, timestamp_ms = message.timestamp()
                log_append = timestamp_type == TIMESTAMP_LOG_APPEND_TIME
                yield {
                    "topic": topic.name,
                    "partition": partition,
                    "offset": message.offset(),
                    "leader_epoch": message.leader_epoch(),
                    "timestamp_type": "LogAppendTime" if log_append else "CreateTime",
                    "timestamp_ms": timestamp_ms,
                    "key": _base64(message.key()),
                    "value": _base64(message.value()),
                    "headers": [[name, _base64(value)] for name, value in headers_of(message)],
                    "committed": message.offset() in committed,
                }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _write_records(records: Iterator[dict[str, object]], path: Path) -> None:
    # No name and no time in the gzip header: equal records give an equal file.
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        for record in records:
            packed.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")


def _check(log_dir: Path) -> None:
    """Refuse a log that lacks what README.md promises or is too large to be committed."""
    sizes = {path: path.stat().st_size for path in log_dir.rglob("*") if path.is_file()}
    problems = [f"{path.name} is too large" for path, n in sizes.items() if n > FILE_LIMIT_BYTES]
    if sum(sizes.values()) > TOTAL_LIMIT_BYTES:
        problems.append("the whole is too large")
    for topic in TOPICS:
        for partition in range(topic.partitions):
            directory = log_dir / f"{topic.name}-{partition}"
            # The snapshot a rolled segment ends with is named by the next segment's base offset.
            bases = sorted(path.stem for path in directory.glob("*.log"))
            for base in bases[1:]:
                if not (directory / f"{base}.snapshot").is_file():
                    problems.append(f"{directory.name}/{base}.snapshot is missing")
    epochs = (log_dir / "orders.eu-west-0" / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    if len(epochs) < ROUNDS:
        problems.append(f"orders.eu-west-0 has only the leader epochs {epochs}")
    indexes = {path.stem for path in log_dir.glob("payments-0/*.txnindex") if sizes[path]}
    if not indexes or indexes >= {path.stem for path in log_dir.glob("payments-0/*.log")}:
        problems.append("payments-0 needs segments with and without aborted transactions")
    spanning = [
        path.name
        for path in log_dir.glob("payments-1/*.txnindex")
        for _, _, first_offset, _, _ in struct.iter_unpack(">hqqqq", path.read_bytes())
        if first_offset < int(path.stem)
    ]
    if not spanning:
        problems.append("payments-1 needs an aborted transaction that spans a roll")
    if problems:
        raise RuntimeError("; ".join(problems))


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="make-kafka-log-") as scratch:
        directory, records = Path(scratch) / "kafka", Path(scratch) / RECORDS.name
        # Apart, as operators may have it: then log.dir holds nothing but logs and checkpoints.
        settings = {"metadata.log.dir": str(directory / "metadata"), "log.retention.ms": "-1"}
        with kafka_broker(directory, settings) as broker:
            Cluster(broker.bootstrap_servers).create(*TOPICS)
            for round_number in range(ROUNDS):
                if round_number > 0:
                    broker.restart()
                cluster = Cluster(broker.bootstrap_servers)
                produce_round(cluster, round_number)
            raise_log_start(cluster)
            _write_records(_read_records(cluster), records)
        _check(broker.log_dir)
        if records.stat().st_size > FILE_LIMIT_BYTES:
            raise RuntimeError(f"{records.name} is too large")
        shutil.rmtree(LOG_DIR, ignore_errors=True)
        shutil.copytree(broker.log_dir, LOG_DIR)
        shutil.copyfile(records, RECORDS)
    print(f"wrote {LOG_DIR.name}/ and {RECORDS.name} into {HERE.name}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
