"""Read fuzzed answers of brokers, and the names and files of a broker's log directory."""

from collections.abc import Callable, Sequence
from os import fsencode, makedirs
from shutil import rmtree
from typing import Any
from uuid import UUID

from kafka.protocol.admin import DescribeConfigsResponse
from kafka.protocol.consumer import ListOffsetsResponse
from kafka.protocol.metadata import MetadataResponse

from services.api.validation import INT32_MAX
from services.rlm.kafka_admin.client import (
    broker_addresses,
    cleanup_policy,
    cluster_view,
    stable_offsets,
)
from services.rlm.kafka_admin.cluster_view import TopicView
from services.rlm.kafka_log.log_dir import find_partitions, read_cluster_id
from services.rlm.kafka_log.partition_dir import LogDirError
from tests.harness.parsers.of_logs import bundled_files
from tests.harness.parsers.target import Target, written
from tests.unit.rlm.kafka_bytes import NAME, batch


def _read_metadata(answer: Any) -> None:
    view = cluster_view([answer])
    assert view.cluster_id
    for topic in view.topics.values():
        assert not isinstance(topic, TopicView) or isinstance(topic.topic_id, UUID)
    assert all(isinstance(address, str) for address in broker_addresses(answer).values())


def _read_policies(answer: Any) -> None:
    for result in answer.results or ():
        cleanup_policy(result)


def _read_offsets(answer: Any) -> None:
    assert all(offset >= 0 for offset in stable_offsets([answer], [NAME]).values())


_ANSWERS: Sequence[tuple[Any, int, Callable[[Any], None]]] = (
    (MetadataResponse, 10, _read_metadata),
    (MetadataResponse, 12, _read_metadata),
    (MetadataResponse, 13, _read_metadata),
    (DescribeConfigsResponse, 1, _read_policies),
    (DescribeConfigsResponse, 4, _read_policies),
    (ListOffsetsResponse, 4, _read_offsets),
    (ListOffsetsResponse, 7, _read_offsets),
)


class _UnreadableError(Exception):
    """The error if an answer cannot be read: KafkaAdmin fails the request by any error."""


def _read_answer(data: bytes) -> None:
    """Take the kind of the answer and its version from the first byte."""
    if not data:
        return
    kind, version, read = _ANSWERS[data[0] % len(_ANSWERS)]
    try:
        read(kind.decode(data[1:], version=version))
    except AssertionError:
        raise
    except Exception as e:
        raise _UnreadableError from e


def _answers() -> Sequence[bytes]:
    topic = MetadataResponse.MetadataResponseTopic(
        error_code=0,
        name=NAME.topic,
        topic_id=UUID(int=1 << 100),
        is_internal=False,
        partitions=[
            MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
                error_code=0,
                partition_index=0,
                leader_id=1,
                leader_epoch=2,
                replica_nodes=[1, 2],
                isr_nodes=[1],
                offline_replicas=[],
            )
        ],
    )
    broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="::1", port=9092, rack=None)
    metadata = MetadataResponse(
        throttle_time_ms=0,
        brokers=[broker],
        cluster_id="cluster",
        controller_id=1,
        topics=[topic],
        error_code=0,
    )
    described = DescribeConfigsResponse.DescribeConfigsResult
    policies = DescribeConfigsResponse(
        throttle_time_ms=0,
        results=[
            described(
                error_code=0,
                error_message=None,
                resource_type=2,
                resource_name=NAME.topic,
                configs=[
                    described.DescribeConfigsResourceResult(
                        name="cleanup.policy",
                        value="delete",
                        read_only=False,
                        config_source=5,
                        is_sensitive=False,
                        synonyms=[],
                        config_type=7,
                        documentation=None,
                    )
                ],
            )
        ],
    )
    listed = ListOffsetsResponse.ListOffsetsTopicResponse
    offsets = ListOffsetsResponse(
        throttle_time_ms=0,
        topics=[
            listed(
                name=NAME.topic,
                partitions=[
                    listed.ListOffsetsPartitionResponse(
                        partition_index=NAME.partition,
                        error_code=0,
                        timestamp=-1,
                        offset=7,
                        leader_epoch=2,
                    )
                ],
            )
        ],
    )
    made = {MetadataResponse: metadata, DescribeConfigsResponse: policies}
    return [
        bytes([number]) + bytes(made.get(kind, offsets).encode(version=version))
        for number, (kind, version, _) in enumerate(_ANSWERS)
    ]


def _read_cluster_id(data: bytes) -> None:
    found = read_cluster_id([written(data, "meta.properties").parent])
    assert found == "".join(found.split())


_MOST_FOLDERS = 4
_LONGEST_NAME_BYTES = 255


def _find_folders(data: bytes) -> None:
    """Use each line as the name of a folder in a log directory; each has a log and a topic id."""
    log_dir = written(b"", "log-dir-at").with_name("log-dir")
    log_dir.mkdir()
    try:
        (log_dir / "meta.properties").write_bytes(b"node.id=1\n")
        for name in data.split(b"\n")[:_MOST_FOLDERS]:
            if not name.strip(b".") or b"/" in name or b"\0" in name:
                continue
            folder = fsencode(log_dir) + b"/" + name[:_LONGEST_NAME_BYTES]
            _make_partition(folder)
        for found in find_partitions([log_dir]).partitions:
            assert 0 <= found.partition <= INT32_MAX
            assert f"{found.topic}-{found.partition}".encode() in data
    finally:
        rmtree(log_dir)


def _make_partition(folder: bytes) -> None:
    makedirs(folder, exist_ok=True)
    for name, content in (
        (b"00000000000000000000.log", batch(0)),
        (b"partition.metadata", b"version: 0\ntopic_id: AAAAAAAAQACAAAAAAAAABw\n"),
    ):
        with open(folder + b"/" + name, "wb") as file:
            file.write(content)


TARGETS = (
    Target("broker_answer", _read_answer, (_UnreadableError,), _answers),
    Target("cluster_id", _read_cluster_id, (LogDirError,), bundled_files("meta.properties")),
    Target(
        "log_directory",
        _find_folders,
        (),
        lambda: [b"orders-0\norders-7-delete", b"a.b_c-2147483647\n__consumer_offsets-1"],
    ),
)
