"""Test `sediment topics`: settings merged, refused in one line, and the deletion of a topic."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from services.api.ids import TopicIdPartition, random_uuid, uuid_to_text
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import PartitionLeadership, all_partitions
from services.api.topic_config import StoredTopicConfig
from services.cli.topics import KnownTopic, _put
from services.local.postgres import EmbeddedPostgres
from tests.harness.processes import RlmmProcess, running_rlmm

MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED


@pytest.fixture(scope="module")
def rlmm(
    postgres: EmbeddedPostgres, migrated_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RlmmProcess]:
    url = postgres.create_database("cli_topics", template=migrated_database)
    with running_rlmm(url, tmp_path_factory.mktemp("rlmm")) as made:
        yield made
    postgres.drop_database("cli_topics")


def make_topic(rlmm: RlmmProcess, name: str, partitions: int = 2) -> UUID:
    """Create a known topic whose id does not begin with a dash."""
    while uuid_to_text(topic_id := random_uuid()).startswith("-"):
        pass
    leaders = [PartitionLeadership(TopicIdPartition(topic_id, name, n)) for n in range(partitions)]
    rlmm.client.on_partition_leadership_changes(leaders, [], broker_id=1)
    return topic_id


@pytest.fixture
def topic(rlmm: RlmmProcess) -> str:
    """Return the name of a topic of the test's own, with a dot and a dash in it."""
    name = f"orders.eu-{uuid4().hex[:8]}"
    make_topic(rlmm, name)
    return name


def stored(rlmm: RlmmProcess, name: str) -> dict[str, str]:
    (answer,) = rlmm.answers("topics", "show", name)
    settings: dict[str, str] = answer["settings"]
    return settings


def test_set_merges_with_the_present_settings(rlmm: RlmmProcess, topic: str) -> None:
    rlmm.answers("topics", "set", topic, "retention.ms=1000", "retention.bytes=-1")
    (after,) = rlmm.answers("topics", "set", topic, "retention.ms=2000", "--unset=retention.bytes")
    assert (after["settings"], after["revision"]) == ({"retention.ms": "2000"}, 2)
    assert stored(rlmm, topic) == {"retention.ms": "2000"}


def test_the_same_again_changes_nothing_and_says_so(rlmm: RlmmProcess, topic: str) -> None:
    command = ("topics", "set", topic, "sediment.hold=true")
    rlmm.answers(*command)
    done = rlmm.sediment(*command)
    said = done.stderr.splitlines()[-1]
    assert said == f"topic {topic} already has these settings; nothing was changed"
    assert rlmm.answers("topics", "show", topic)[0]["revision"] == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["retention.mss=1"], "retention.mss: no such setting"),
        (["retention.ms=soon"], "retention.ms: must be a whole number"),
        (["retention.ms=1", "local.retention.ms=2"], "local.retention.ms: must not be longer"),
        (["cleanup.policy=compact"], "cleanup.policy"),
        (["retention.ms"], "'retention.ms' is not KEY=VALUE"),
        (["=1"], "'=1' is not KEY=VALUE"),
        (["retention.ms=1", "retention.ms=2"], "retention.ms is set twice"),
        (["sediment.hold=true", "--unset=sediment.hold"], "sediment.hold is both set and unset"),
        (["--unset=retention.ms"], "retention.ms is not set for topic"),
        ([], "nothing to change"),
    ],
)
def test_invalid_setting_is_named_and_nothing_changes(
    rlmm: RlmmProcess, topic: str, arguments: list[str], named: str
) -> None:
    rlmm.client.put_topic_config(topic_id_of(rlmm, topic), {"retention.bytes": "7"})
    assert named in rlmm.refusal("topics", "set", topic, *arguments)
    config = rlmm.client.topic_config(topic_id_of(rlmm, topic))
    assert (dict(config.entries), config.revision) == ({"retention.bytes": "7"}, 1)


def topic_id_of(rlmm: RlmmProcess, name: str) -> UUID:
    return next(all_partitions(rlmm.client, topic=name)).topic_id_partition.topic_id


@pytest.mark.parametrize("command", [["show"], ["set", "sediment.hold=true"], ["delete", "--yes"]])
def test_an_unknown_topic_is_refused(rlmm: RlmmProcess, command: list[str]) -> None:
    verb, *rest = command
    line = rlmm.refusal("topics", verb, "absent", *rest)
    assert line == "sediment: the tier has no topic absent; `sediment topics list` lists its topics"


def test_of_several_topics_of_a_name_the_id_says_which(rlmm: RlmmProcess, topic: str) -> None:
    again = f"{uuid_to_text(make_topic(rlmm, topic))}:{topic}"
    line = rlmm.refusal("topics", "set", topic, "retention.ms=1")
    assert line.startswith(f"sediment: several topics have had the name {topic}; pass one of ")
    assert again in line
    rlmm.answers("topics", "set", again, "retention.ms=1")
    assert stored(rlmm, again) == {"retention.ms": "1"}


def test_topics_are_listed_with_their_settings(rlmm: RlmmProcess, topic: str) -> None:
    rlmm.answers("topics", "set", topic, "retention.ms=1000")
    (found,) = [t for t in rlmm.answers("topics", "list") if t["topic"] == topic]
    assert found["partitions"] == 2
    assert found["settings"] == {"retention.ms": "1000"}
    assert topic in rlmm.sediment("topics", "list").stdout
    assert "retention.ms" in rlmm.sediment("topics", "show", topic).stdout


def delete_states(rlmm: RlmmProcess, name: str) -> list[RemotePartitionDeleteState | None]:
    return [summary.delete_state for summary in all_partitions(rlmm.client, topic=name)]


def test_a_topic_is_deleted_only_when_asked_for_twice(rlmm: RlmmProcess, topic: str) -> None:
    assert "pass --yes" in rlmm.refusal("topics", "delete", topic)
    assert delete_states(rlmm, topic) == [None, None]


def test_deleting_marks_every_partition_and_may_be_repeated(rlmm: RlmmProcess, topic: str) -> None:
    (first,) = rlmm.answers("topics", "delete", topic, "--yes")
    (again,) = rlmm.answers("topics", "delete", topic, "--yes")
    assert (first["marked"], again["marked"]) == (2, 0)
    assert delete_states(rlmm, topic) == [MARKED, MARKED]
    (shown,) = rlmm.answers("topics", "show", topic)
    assert shown["deleting_partitions"] == 2


class SetMeanwhile:
    """The real RLMM; another client's setting is stored once between a read and the next put."""

    def __init__(self, rlmm: RlmmProcess, entries: Mapping[str, str]) -> None:
        self._client = rlmm.client
        self._entries = entries
        self._once = threading.Lock()

    def put_topic_config(self, topic_id: UUID, *rest: Any) -> StoredTopicConfig:
        if self._once.acquire(blocking=False):
            self._client.put_topic_config(topic_id, self._entries)
        return self._client.put_topic_config(topic_id, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def test_setting_put_concurrently_by_another_client_is_kept(rlmm: RlmmProcess, topic: str) -> None:
    found = KnownTopic(topic_id_of(rlmm, topic), topic)
    manager: Any = SetMeanwhile(rlmm, {"sediment.hold": "true"})
    _, after = _put(manager, found, {"retention.ms": "5"}, [])
    assert dict(after.entries) == {"sediment.hold": "true", "retention.ms": "5"}


@pytest.mark.deep
def test_an_rlmm_that_is_away_is_reported_in_one_line(tmp_path: Path) -> None:
    away = RlmmProcess("127.0.0.1:1", None)  # type: ignore[arg-type]  # is not asked anything
    done = away.sediment("topics", "list")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
