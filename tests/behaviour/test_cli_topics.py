"""Test `sediment topics`: settings merged, refused in one line, and the deletion of a topic."""

import socket
import subprocess
import sysconfig
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from services.api.ids import uuid_to_text
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import PartitionLeadership, all_partitions
from services.api.topic_config import StoredTopicConfig
from services.cli.topics import _put
from services.local.stack import own_environment
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.views.topics import TopicFigures
from tests.harness import served_fixtures
from tests.harness.processes import RlmmProcess
from tests.harness.tier import a_topic
from tests.harness.wrapper import Wrapper

MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED

rlmm = served_fixtures.rlmm


def make_topic(rlmm: RlmmProcess, name: str, partitions: int = 2) -> UUID:
    """Create a known topic; return its id."""
    made = a_topic(name, partitions)
    rlmm.client.on_partition_leadership_changes([*map(PartitionLeadership, made)], [], broker_id=1)
    return made[0].topic_id


@pytest.fixture
def topic(rlmm: RlmmProcess) -> str:
    """Return the name of a topic, with a dot and a dash in it."""
    name = "orders.eu-1"
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
    command = ("topics", "set", topic, "sediment.owner=team")
    rlmm.answers(*command)
    done = rlmm.sediment(*command)
    said = done.stderr.splitlines()[-1]
    assert said == f"topic {topic} already has these settings; nothing was changed"
    assert rlmm.answers("topics", "show", topic)[0]["revision"] == 1


def topic_id_of(rlmm: RlmmProcess, name: str) -> UUID:
    return next(all_partitions(rlmm.client, topic=name)).topic_id_partition.topic_id


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


def test_deleting_marks_every_partition_and_may_be_repeated(rlmm: RlmmProcess, topic: str) -> None:
    (first,) = rlmm.answers("topics", "delete", topic, "--yes")
    (again,) = rlmm.answers("topics", "delete", topic, "--yes")
    assert (first["marked"], again["marked"]) == (2, 0)
    assert delete_states(rlmm, topic) == [MARKED, MARKED]
    (shown,) = rlmm.answers("topics", "show", topic)
    assert shown["deleting_partitions"] == 2


class SetMeanwhile(Wrapper[RemoteLogMetadataManagerClient]):
    """The real RLMM; another client's setting is stored once between a read and the next put."""

    def __init__(self, rlmm: RlmmProcess, entries: Mapping[str, str]) -> None:
        super().__init__(rlmm.client)
        self._entries = entries
        self._once = threading.Lock()

    def put_topic_config(self, topic_id: UUID, *rest: Any, now: bool) -> StoredTopicConfig:
        if self._once.acquire(blocking=False):
            self.real.put_topic_config(topic_id, self._entries)
        return self.real.put_topic_config(topic_id, *rest, now=now)


def test_setting_put_concurrently_by_another_client_is_kept(rlmm: RlmmProcess, topic: str) -> None:
    found = TopicFigures(topic_id_of(rlmm, topic), topic)
    manager: Any = SetMeanwhile(rlmm, {"sediment.owner": "team"})
    _, after = _put(manager, found, {"retention.ms": "5"}, [], now=False)
    assert dict(after.entries) == {"sediment.owner": "team", "retention.ms": "5"}


def offered(rlmm_address: str, *typed: str) -> list[str]:
    """Return what bash offers for the last of the typed words."""
    environment = {
        **own_environment({}),
        "_SEDIMENT_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["sediment", *typed]),
        "COMP_CWORD": str(len(typed)),
        "SEDIMENT_RLMM": rlmm_address,
    }
    program = Path(sysconfig.get_path("scripts")) / "sediment"
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.deep
def test_names_and_settings_are_completed_from_the_deployment(
    rlmm: RlmmProcess, topic: str
) -> None:
    assert offered(rlmm.address, "topics", "show", "ord") == [topic]
    assert offered(rlmm.address, "explain", "orders") == [f"{topic}-0", f"{topic}-1"]
    assert offered(rlmm.address, "-o", "json", "verified", "orders") == [topic]
    assert "retention.ms=" in offered(rlmm.address, "topics", "set", topic, "ret")
    assert offered(rlmm.address, "topics", "set", topic, "--unset", "") == []
    assert rlmm.sediment("topics", "set", topic, "sediment.owner=team").returncode == 0
    assert offered(rlmm.address, "topics", "set", topic, "--unset", "s") == ["sediment.owner"]


@pytest.mark.deep
def test_nothing_is_completed_and_nothing_said_if_the_deployment_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address in ("127.0.0.1:1", "no address", f"127.0.0.1:{silent.getsockname()[1]}"):
            began_s = time.monotonic()
            assert offered(address, "topics", "show", "ord") == []
            assert time.monotonic() - began_s < 10
