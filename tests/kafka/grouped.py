"""A broker with users, an RLM whose listener stands beside it, and clients that read in groups."""

import base64
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer
from kafka.net.sasl.oauth import AbstractTokenProvider

from demos.kafka_broker import KafkaBroker, find_java
from demos.stage import link_log_dir, unlink_segments
from services.api.roles import Role
from services.rlm.consumers.listener import Access
from services.rlm.kafka_admin.beside import BrokerBeside
from services.rlm.kafka_admin.client import KafkaAdmin
from services.rlm.kafka_admin.security import KafkaSecurity, SaslMechanism, SecurityProtocol
from services.rlm.kafka_log.checkpoints import HIGH_WATERMARKS, read_offset_checkpoint
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.manager import BrokerRemoteLogManager
from services.rpc.server.sockets import SocketAccess
from tests.data.kafka_log_content import PAYMENTS, produce_payments
from tests.harness.certificates import keystore
from tests.harness.doors import serving_consumers
from tests.harness.eventually import eventually
from tests.harness.jars import ensure_kafka_jars, ensure_tools_jars
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import CLIENT_TIMEOUT_S, Cluster
from tests.harness.secured import Secrets, make_secrets
from tests.harness.ship_stack import Stack
from tests.kafka.tiered_broker import IMPATIENT, NO_END

TOPIC = PAYMENTS.name
USER, PASSWORD, STRANGER = "alice", "hunter2", "mallory"
LISTENERS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = {"PLAIN": "PLAIN", "SCRAM": "SCRAM-SHA-512", "OAUTHBEARER": "OAUTHBEARER"}
SECURITIES = ("PLAINTEXT", "TLS", *MECHANISMS)
"""How a client connects: as anyone, with a certificate, or as a user of the cluster.

Users of SCRAM do so with TLS on both sides, the others without.
"""

_MODULES = "org.apache.kafka.common.security"
_PLAIN = f"{_MODULES}.plain.PlainLoginModule"
_SCRAM = f"{_MODULES}.scram.ScramLoginModule"
_OAUTH = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule"

Read = set[tuple[int, int, str, str]]
"""Partition, offset, key and value of records."""


@contextmanager
def broker_with_users(directory: Path) -> Iterator[tuple[KafkaBroker, Secrets]]:
    """Run a broker whose users need ACLs, with two rounds of transactions in one topic.

    Whoever has no name may do everything: the tests, and RLM.
    """
    secrets = make_secrets(directory / "tls")
    host = secrets.authority.issue("broker", hosts=("127.0.0.1",))
    settings = {
        **IMPATIENT,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore(host)),
        "group.consumer.heartbeat.interval.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "1000",
        "group.consumer.assignment.interval.ms": "0",
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        at = f"listener.name.{listener}"
        users = " ".join(f'user_{name}="{PASSWORD}"' for name in (USER, STRANGER))
        settings |= {
            f"{at}.sasl.enabled.mechanisms": ",".join(MECHANISMS.values()),
            f"{at}.plain.sasl.jaas.config": f"{_PLAIN} required {users};",
            f"{at}.scram-sha-512.sasl.jaas.config": f"{_SCRAM} required;",
            f"{at}.oauthbearer.sasl.jaas.config": (
                f'{_OAUTH} required unsecuredLoginStringClaim_sub="broker";'
            ),
            f"{at}.connections.max.reauth.ms": "3000",
        }
    with kafka_broker(directory / "kafka", settings, listeners=LISTENERS) as broker:
        cluster = Cluster(broker.bootstrap_servers)
        cluster.create(PAYMENTS)
        for number in range(2):
            produce_payments(cluster, number)
        _let_in(cluster)
        yield broker, secrets


def _let_in(cluster: Cluster) -> None:
    """Give USER a password for SCRAM and what a consumer needs."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    user = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    for altered in cluster.admin.alter_user_scram_credentials([user]).values():
        altered.result(CLIENT_TIMEOUT_S)
    allowed = [
        AclBinding(
            kind,
            "*",
            ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        for kind in (ResourceType.TOPIC, ResourceType.GROUP)
    ]
    for created in cluster.admin.create_acls(allowed).values():
        created.result(CLIENT_TIMEOUT_S)


def tiered_rlm(broker: KafkaBroker, stack: Stack, links: Path) -> BrokerRemoteLogManager:
    """Ship the topic, and return an RLM over links to the log, without its rolled segments."""
    cluster = Cluster(broker.bootstrap_servers)

    def is_written_down() -> bool:
        written = read_offset_checkpoint(broker.log_dir / HIGH_WATERMARKS) or {}
        return all(
            written.get((TOPIC, number), -1) >= cluster.offsets(TOPIC, number).log_end_offset
            for number in range(PAYMENTS.partitions)
        )

    eventually(is_written_down, 30_000)
    link_log_dir(broker.log_dir, links)
    stack.ship(links)
    for found in find_partitions([links]).partitions.values():
        unlink_segments(found.path, NO_END)
    return stack.rlm(links)


@dataclass(frozen=True)
class Door:
    """A listener of RLM, and what its clients must say.

    Attributes:
        security: one of SECURITIES.
    """

    address: str
    security: str
    secrets: Secrets
    user: str = USER
    password: str = PASSWORD

    @property
    def mechanism(self) -> str | None:
        return MECHANISMS.get(self.security)

    @property
    def has_tls(self) -> bool:
        return self.security in ("TLS", "SCRAM")

    def librdkafka(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"security.protocol": self._protocol.lower()}
        if self.has_tls:
            settings["ssl.ca.location"] = str(self.secrets.authority.certificate)
        if self.security == "TLS":
            settings["ssl.certificate.location"] = str(self.secrets.operator.certificate)
            settings["ssl.key.location"] = str(self.secrets.operator.key)
        if self.mechanism is not None:
            settings["sasl.mechanisms"] = self.mechanism
        if self.security == "OAUTHBEARER":
            settings["enable.sasl.oauthbearer.unsecure.jwt"] = "true"
            settings["sasl.oauthbearer.config"] = f"principal={self.user}"
        elif self.mechanism is not None:
            settings |= {"sasl.username": self.user, "sasl.password": self.password}
        return settings

    def java(self) -> dict[str, str]:
        settings = {"security.protocol": self._protocol}
        if self.has_tls:
            settings["ssl.truststore.type"] = "PEM"
            settings["ssl.truststore.location"] = str(self.secrets.authority.certificate)
        if self.security == "TLS":
            settings["ssl.keystore.type"] = "PEM"
            settings["ssl.keystore.location"] = str(keystore(self.secrets.operator))
        if self.mechanism is not None:
            settings["sasl.mechanism"] = self.mechanism
            login = f'username="{self.user}" password="{self.password}"'
            settings["sasl.jaas.config"] = {
                "PLAIN": f"{_PLAIN} required {login};",
                "SCRAM": f"{_SCRAM} required {login};",
                "OAUTHBEARER": f'{_OAUTH} required unsecuredLoginStringClaim_sub="{self.user}";',
            }[self.security]
        return settings

    def kafka_python(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"security_protocol": self._protocol}
        if self.has_tls:
            settings["ssl_cafile"] = str(self.secrets.authority.certificate)
        if self.security == "TLS":
            settings["ssl_certfile"] = str(self.secrets.operator.certificate)
            settings["ssl_keyfile"] = str(self.secrets.operator.key)
        if self.mechanism is not None:
            settings |= {"sasl_mechanism": self.mechanism}
            settings |= {"sasl_plain_username": self.user, "sasl_plain_password": self.password}
        if self.security == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = _Unsigned(self.user)
        return settings

    @property
    def _protocol(self) -> str:
        transport = "SSL" if self.has_tls else "PLAINTEXT"
        return transport if self.mechanism is None else f"SASL_{transport}"


class _Unsigned(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Tokens that the broker believes without a signature, for tests."""

    def __init__(self, user: str) -> None:
        super().__init__()
        self._user = user

    def token(self) -> str:
        return unsigned_token(self._user)


def unsigned_token(user: str) -> str:
    now_s = int(time.time())
    parts = ({"alg": "none"}, {"sub": user, "iat": now_s, "exp": now_s + 3600})
    encoded = [base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=") for p in parts]
    return (b".".join(encoded) + b".").decode()


@contextmanager
def opened_door(
    security: str, rlm: BrokerRemoteLogManager, broker: KafkaBroker, secrets: Secrets
) -> Iterator[Door]:
    """Serve consumers as RLM does beside a listener of this kind."""
    access: Access | None = None
    if security in ("TLS", "SCRAM"):
        secrets.policy.write_text(
            '[[grant]]\nidentities = ["spiffe://sediment.test/operator"]\n'
            f'roles = ["{Role.READER}"]\ntopics = ["*"]\ngroups = ["*"]\n'
        )
        needs_certificates = security == "TLS"
        access = SocketAccess(
            secrets.settings(), "RemoteLogManager", needs_certificates=needs_certificates
        )
    own = _own_security(security, secrets)
    admin = KafkaAdmin([broker.address(own.security_protocol.value)], security=own)
    beside = BrokerBeside(admin, broker.node_id, own, may_send_plaintext=False)
    with serving_consumers(rlm, access, beside, broker.node_id) as address:
        yield Door(address, security, secrets)


def _own_security(security: str, secrets: Secrets) -> KafkaSecurity:
    """Return how RLM itself connects: the user is the stranger, who may read nothing."""
    ca_file = secrets.authority.certificate
    if security == "PLAINTEXT":
        return KafkaSecurity()
    if security == "TLS":
        return KafkaSecurity(SecurityProtocol.SSL, ssl_ca_file=ca_file)
    file = secrets.policy.with_name("password")
    if security == "OAUTHBEARER":
        file = secrets.policy.with_name("token")
        file.write_text(unsigned_token(STRANGER))
        return KafkaSecurity(
            SecurityProtocol.SASL_PLAINTEXT, SaslMechanism.OAUTHBEARER, password_file=file
        )
    file.write_text(PASSWORD)
    protocol = SecurityProtocol.SASL_SSL if security == "SCRAM" else SecurityProtocol.SASL_PLAINTEXT
    return KafkaSecurity(
        protocol,
        SaslMechanism.PLAIN,
        STRANGER,
        file,
        ssl_ca_file=ca_file if protocol.has_tls else None,
    )


# --- clients --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """What a client is to read: so many records, from the first, in a new group."""

    group: str
    isolation: str
    records: int
    protocol: str = "classic"


def by_kcat(door: Door, reading: Reading) -> Read:
    settings = {
        **door.librdkafka(),
        "auto.offset.reset": "earliest",
        "isolation.level": reading.isolation,
    }
    command = ["kcat", "-b", door.address, "-q", "-c", str(reading.records)]
    command += [word for key, value in settings.items() for word in ("-X", f"{key}={value}")]
    command += ["-f", "%p\t%o\t%k\t%s\n", "-G", reading.group, TOPIC]
    return _printed(command)


def by_the_console_consumer(door: Door, reading: Reading) -> Read:
    properties = {
        **door.java(),
        "auto.offset.reset": "earliest",
        "isolation.level": reading.isolation,
        "group.protocol": reading.protocol,
    }
    file = door.secrets.policy.with_name(f"{reading.group}.properties")
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    command = java_tool("consumer.ConsoleConsumer", door, file)
    command += ["--topic", TOPIC, "--group", reading.group]
    command += ["--max-messages", str(reading.records), "--timeout-ms", "60000"]
    for shown in ("partition", "offset", "key"):
        command += ["--formatter-property", f"print.{shown}=true"]
    return _printed(command, ("Partition:", "Offset:"))


def java_tool(name: str, door: Door, command_config: Path) -> list[str]:
    """Return the command of one of Kafka's tools, which begins with its connection."""
    command = [find_java(), "-Xmx256m", "-XX:TieredStopAtLevel=1"]
    command += ["-cp", f"{ensure_tools_jars()}/*:{ensure_kafka_jars()}/*"]
    command += [f"org.apache.kafka.tools.{name}", "--bootstrap-server", door.address]
    return [*command, "--command-config", str(command_config)]


def by_confluent_kafka(door: Door, reading: Reading) -> Read:
    found: Read = set()
    with closing(confluent_consumer(door, reading)) as consumer:
        consumer.subscribe([TOPIC])
        while len(found) < reading.records:
            message = consumer.poll(CLIENT_TIMEOUT_S)
            assert message is not None
            assert message.error() is None, message.error()
            found.add(record_of(message))
        consumer.commit(asynchronous=False)
    return found


def confluent_consumer(door: Door, reading: Reading, **settings: Any) -> Consumer:
    return Consumer(
        {
            **door.librdkafka(),
            "bootstrap.servers": door.address,
            "group.id": reading.group,
            "group.protocol": reading.protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": reading.isolation,
            "log_level": 2,
            **settings,
        }
    )


def record_of(message: Any) -> tuple[int, int, str, str]:
    key, value = message.key(), message.value()
    return message.partition(), message.offset(), key.decode(), value.decode()


def by_kafka_python(door: Door, reading: Reading) -> Read:
    found: Read = set()
    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=door.address,
        group_id=reading.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level=reading.isolation,
        consumer_timeout_ms=int(CLIENT_TIMEOUT_S * 1000),
        **door.kafka_python(),
    )
    with closing(consumer):
        for m in consumer:
            found.add((m.partition, m.offset, m.key.decode(), m.value.decode()))
            if len(found) == reading.records:
                break
        consumer.commit()
    return found


CLIENTS: Mapping[str, tuple[Callable[[Door, Reading], Read], str]] = {
    "kcat": (by_kcat, "classic"),
    "console consumer": (by_the_console_consumer, "classic"),
    "console consumer, KIP-848": (by_the_console_consumer, "consumer"),
    "confluent-kafka": (by_confluent_kafka, "classic"),
    "confluent-kafka, KIP-848": (by_confluent_kafka, "consumer"),
    "kafka-python": (by_kafka_python, "classic"),
}
"""kafka-python has no groups of KIP-848, nor has the librdkafka of kcat."""


def _printed(command: Sequence[str], prefixes: Sequence[str] = ("", "")) -> Read:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: Read = set()
    for line in done.stdout.splitlines():
        partition, offset, key, value = line.split("\t", 3)
        numbers = [
            int(text.removeprefix(prefix))
            for text, prefix in zip((partition, offset), prefixes, strict=True)
        ]
        found.add((numbers[0], numbers[1], key, value))
    return found


def at_the_broker(broker: KafkaBroker, isolation: str) -> Read:
    cluster = Cluster(broker.bootstrap_servers)
    return {
        record_of(message)
        for number in range(PAYMENTS.partitions)
        for message in cluster.read(TOPIC, number, isolation)
    }


def committed(broker: KafkaBroker, group: str) -> dict[int, int]:
    """Return the offsets that a group has committed, by partition."""
    admin = Cluster(broker.bootstrap_servers).admin
    asked = ConsumerGroupTopicPartitions(group)
    (found,) = admin.list_consumer_group_offsets([asked]).values()
    partitions = found.result(CLIENT_TIMEOUT_S).topic_partitions
    return {each.partition: each.offset for each in partitions if each.topic == TOPIC}
