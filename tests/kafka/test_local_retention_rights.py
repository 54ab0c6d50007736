"""A broker that refuses RLM's user a right: said once, by topic, and nothing is half changed."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from tests.harness.databases import Store
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import CLIENT_TIMEOUT_S, Cluster, Topic
from tests.harness.world import running_world
from tests.kafka.sidecar import BROKER_SETTINGS, DEADLINE_MS, Sidecar, running_sidecar
from tests.kafka.test_local_retention import (
    NO_RETENTION,
    OWN_RETENTION,
    OWNER,
    SEGMENT_BYTES,
    Kept,
)

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

USER, PASSWORD = "rlm", "hunter2"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SASL = "listener.name.sasl_plaintext"
USERS = {
    **BROKER_SETTINGS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # the tests
    f"{SASL}.sasl.enabled.mechanisms": "PLAIN",
    f"{SASL}.plain.sasl.jaas.config": f'{PLAIN} required user_{USER}="{PASSWORD}";',
}
LOOKING = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
ALL = (*LOOKING, AclOperation.ALTER_CONFIGS, AclOperation.DELETE)
TRIMMING = (f"{OWNER}=rlm", "local.retention.ms=0")


@pytest.fixture(scope="module")
def sidecar(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    directory = tmp_path_factory.mktemp("rights")
    password = directory / "password"
    password.write_text(PASSWORD)
    login = {
        "RLM_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "RLM_KAFKA_SASL_MECHANISM": "PLAIN",
        "RLM_KAFKA_USERNAME": USER,
        "RLM_KAFKA_PASSWORD_FILE": str(password),
    }
    listeners = ("SASL_PLAINTEXT",)
    with (
        kafka_broker(directory / "kafka", USERS, listeners=listeners) as broker,
        running_world(directory / "services", *store, broker.log_dir) as world,
        running_sidecar(
            broker,
            world,
            directory / "rlm",
            broker.log_dirs,
            bootstrap_servers=broker.address("SASL_PLAINTEXT"),
            further=login,
        ) as made,
    ):
        yield made


@dataclass(frozen=True)
class Rights:
    """What RLM's user may do about one topic."""

    cluster: Cluster
    topic: str

    def grant(self, *operations: AclOperation) -> None:
        """Wait until the broker has it: the controller answers before."""
        bindings = [AclBinding(*self._acl(each)) for each in operations]
        for done in self.cluster.admin.create_acls(bindings).values():
            done.result(CLIENT_TIMEOUT_S)
        eventually(lambda: set(operations) <= self._granted())

    def revoke(self, *operations: AclOperation) -> None:
        filters = [AclBindingFilter(*self._acl(each)) for each in operations]
        for done in self.cluster.admin.delete_acls(filters).values():
            done.result(CLIENT_TIMEOUT_S)
        eventually(lambda: not set(operations) & self._granted())

    def _granted(self) -> set[AclOperation]:
        every = AclBindingFilter(*self._acl(AclOperation.ANY))
        found = self.cluster.admin.describe_acls(every).result(CLIENT_TIMEOUT_S)
        return {binding.operation for binding in found}

    def _acl(self, operation: AclOperation) -> tuple[Any, ...]:
        of = (ResourceType.TOPIC, self.topic, ResourcePatternType.LITERAL, f"User:{USER}", "*")
        return (*of, operation, AclPermissionType.ALLOW)


def created(sidecar: Sidecar, name: str, *operations: AclOperation) -> tuple[Kept, Rights]:
    topic = Topic(name, 1, SEGMENT_BYTES, OWN_RETENTION)
    rights = Rights(sidecar.cluster, name)
    rights.grant(*operations)
    (tp,) = sidecar.create_tiered(topic)
    kept = Kept(sidecar, topic, tp)
    kept.produce()
    return kept, rights


def logged(kept: Kept, text: str) -> list[str]:
    """Return RLM's lines about the topic that have a text."""
    lines = map(json.loads, Path(kept.sidecar.process.process.log_path).read_text().splitlines())
    texts = [line["message"] for line in lines]
    return [each for each in texts if text in each and kept.topic.name in each]


def is_trimmed_by_rlm(kept: Kept) -> bool:
    return kept.sidecar.rlmm.topic_config(kept.name.topic_id).config.is_trimmed_by_rlm


def failed_passes(kept: Kept) -> int:
    text = Path(kept.sidecar.process.process.log_path).read_text()
    return text.count("the broker refused trims of 1 topic")


def found_by_doctor(kept: Kept) -> set[tuple[str, str]]:
    """Return the levels of what `sediment doctor` found of the topic, and the end of its line."""
    document = json.loads(kept.run("doctor", "--timeout", 120, "-o", "json").stdout)
    return {
        (each["level"], each["text"].partition("--add ")[2])
        for each in document["findings"]
        if each["check"] == "local retention" and kept.topic.name in each["text"]
    }


@pytest.mark.parametrize(
    ("granted", "missing"),
    [
        (LOOKING, "RLM's user lacks DELETE, ALTER_CONFIGS at the brokers; nothing changed"),
        (ALL[:3], "RLM's user lacks DELETE at the brokers; nothing changed"),
        ((*LOOKING, ALL[3]), "RLM's user lacks ALTER_CONFIGS at the brokers; nothing changed"),
        (LOOKING[:1], "refuses to change its retention: TopicAuthorizationFailed"),
    ],
    ids=["only looks", "no DELETE", "no ALTER_CONFIGS", "no DESCRIBE_CONFIGS"],
)
def test_the_command_is_refused_and_names_what_is_missing(
    sidecar: Sidecar, granted: tuple[AclOperation, ...], missing: str
) -> None:
    kept, _ = created(
        sidecar, "-".join(["lacks", *(each.name.lower() for each in granted)]), *granted
    )
    refused = kept.set(*TRIMMING)
    assert refused.returncode != 0
    assert missing in refused.stderr
    assert kept.config() == OWN_RETENTION
    assert not is_trimmed_by_rlm(kept)


def test_a_right_to_delete_that_is_taken_away_is_missed_once_by_topic(sidecar: Sidecar) -> None:
    kept, rights = created(sidecar, "loses-delete", *ALL)
    first = kept.wait_until_copied()
    assert kept.set(*TRIMMING).returncode == 0
    eventually(lambda: sidecar.local_start(kept.name) == first, DEADLINE_MS)
    rights.revoke(AclOperation.DELETE)
    kept.produce()
    copied = kept.wait_until_copied()
    assert copied > first
    eventually(lambda: failed_passes(kept) >= 3, DEADLINE_MS)
    (line,) = logged(kept, "is not trimmed at its broker")
    assert line.endswith("the broker refuses to delete its records: TopicAuthorizationFailed")
    assert sidecar.local_start(kept.name) == first
    # A user's deletion begins with the tier, and says what the broker still has.
    deleting = ("topics", "delete-records", f"{kept.name.topic}-0", "--before", first + 1, "--yes")
    partly = kept.run(*deleting)
    assert partly.returncode != 0
    assert f"the tier begins at offset {first + 1}" in partly.stderr
    assert "the broker still has them: TopicAuthorizationFailed" in partly.stderr
    assert (kept.log_start(), sidecar.local_start(kept.name)) == (first + 1, first)
    rights.grant(AclOperation.DELETE)
    eventually(lambda: sidecar.local_start(kept.name) == copied, DEADLINE_MS)


def test_a_topic_whose_settings_cannot_be_read_is_trimmed_all_the_same(sidecar: Sidecar) -> None:
    kept, rights = created(sidecar, "loses-describe-configs", *ALL)
    assert kept.set(f"{OWNER}=rlm", "local.retention.ms=86400000").returncode == 0
    copied = kept.wait_until_copied()
    # The right to alter settings implies that to read them.
    rights.revoke(AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
    sidecar.process.kill()  # it looks once a minute
    sidecar.process.start()
    text = "cannot be read: TopicAuthorizationFailed"
    eventually(lambda: len(logged(kept, text)) == 1, DEADLINE_MS)
    assert kept.set("local.retention.ms=0").returncode == 0
    eventually(lambda: sidecar.local_start(kept.name) == copied, DEADLINE_MS)
    assert len(logged(kept, text)) == 1


def test_a_way_back_that_is_refused_leaves_everything_as_it_is(sidecar: Sidecar) -> None:
    kept, rights = created(sidecar, "loses-alter", *ALL)
    assert kept.set(f"{OWNER}=rlm", "local.retention.ms=86400000").returncode == 0
    kept.wait_until_copied()
    assert found_by_doctor(kept) == {("OK", "")}
    rights.revoke(AclOperation.ALTER_CONFIGS)
    grants = "--allow-principal User:RLM --operation AlterConfigs --topic loses-alter"
    eventually(lambda: found_by_doctor(kept) == {("FAIL", grants)}, DEADLINE_MS)
    unset = ("topics", "set", kept.topic.name, "--unset", OWNER)

    def is_refused() -> None:
        refused = kept.run(*unset)
        assert refused.returncode != 0
        assert "TopicAuthorizationFailed" in refused.stderr
        assert "nothing changed" in refused.stderr

    eventually_holds(is_refused, DEADLINE_MS)
    assert kept.config() == NO_RETENTION
    assert is_trimmed_by_rlm(kept)
    rights.grant(AclOperation.ALTER_CONFIGS)
    done = kept.run(*unset)
    assert done.returncode == 0, done.stderr
    assert kept.config() == OWN_RETENTION
