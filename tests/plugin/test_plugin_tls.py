"""A broker tiers over mutual TLS, and authority and certificates change while it runs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text

from demos.kafka_broker import plugin_settings
from services.common.client_security import ClientSecurity
from services.local.certificates import Certificate, CertificateAuthority
from services.local.postgres import EmbeddedPostgres
from services.local.seaweedfs import S3Endpoint
from tests.harness.certificates import Parties
from tests.harness.eventually import eventually
from tests.harness.kafka_broker import kafka_broker
from tests.harness.world import World, running_world
from tests.kafka.records import consumed
from tests.plugin.deployment import DEADLINE_MS, IMPATIENT, Deployment, Partition

pytestmark = pytest.mark.plugin

OPERATOR = "spiffe://sediment.test/operator"
BROKER = "spiffe://sediment.test/broker"
NEW_BROKER = "spiffe://sediment.test/new-broker"
ROTATIONS = 2
POLICY = f"""\
[[grant]]
identities = ["{OPERATOR}"]
roles = ["shipper", "reader", "deleter", "sweeper", "auditor", "admin"]
topics = ["*"]

[[grant]]
identities = ["{BROKER}"]
roles = ["shipper", "reader", "deleter"]
topics = ["*"]
"""

GRANT_TO_NEW_BROKER = POLICY.rpartition("\n\n")[2].replace(BROKER, NEW_BROKER)


@dataclass(frozen=True)
class SecuredWorld:
    """Services that ask every client for a certificate of one authority."""

    world: World
    authority: CertificateAuthority
    policy: Path
    servers: dict[str, Certificate]
    operator: Certificate

    def issue_broker(self, name: str, uri: str = BROKER) -> Certificate:
        """Make a certificate for a broker's identity, in files of this name."""
        return self.authority.issue(name, uris=[uri])

    def parties(self, broker: Certificate) -> Parties:
        """Return all who use the authority."""
        addresses = {"rsm": self.world.rsm.address, "rlmm": self.world.rlmm.address}
        return Parties(
            self.authority.certificate,
            {addresses[name]: certificate for name, certificate in self.servers.items()},
            [self.operator, broker],
            {"operator": OPERATOR, broker.certificate.stem: BROKER},
        )

    def broker_settings(self, jar: Path, shown: Certificate) -> dict[str, str]:
        """Return the properties of a broker that shows this certificate to both services."""
        security = ClientSecurity(self.authority.certificate, shown.certificate, shown.key)
        world = self.world
        settings = plugin_settings(jar, world.rsm.address, world.rlmm.address, security)
        return {**IMPATIENT, **settings}


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory,
    postgres: EmbeddedPostgres,
    migrated_database: str,
    s3: S3Endpoint,
) -> Iterator[SecuredWorld]:
    store = f"plugin-tls-{uuid4()}"
    s3.ensure_bucket(store)
    url = postgres.create_database(store, template=migrated_database)
    directory = tmp_path_factory.mktemp("secured")
    authority = CertificateAuthority(directory)
    policy = directory / "policy.toml"
    policy.write_text(POLICY)
    tls: dict[str, str] = {}
    servers = {name: authority.issue(name) for name in ("rsm", "rlmm")}
    for name, server in servers.items():
        prefix = f"{name.upper()}_"
        tls |= {
            f"{prefix}TLS_CERTIFICATE_FILE": str(server.certificate),
            f"{prefix}TLS_KEY_FILE": str(server.key),
            f"{prefix}TLS_CLIENT_CA_FILE": str(authority.certificate),
            f"{prefix}POLICY_FILE": str(policy),
            f"{prefix}METRICS_PLAINTEXT": "true",
        }
    operator = authority.issue("operator", uris=[OPERATOR])
    security = ClientSecurity(authority.certificate, operator.certificate, operator.key)
    with running_world(directory, url, s3, store, directory, tls, security) as world:
        yield SecuredWorld(world, authority, policy, servers, operator)
    postgres.drop_database(store)
    s3.remove_bucket(store)


def has_line(deployment: Deployment, *words: str) -> Callable[[], bool]:
    return lambda: any(all(w in line for w in words) for line in deployment.broker_log())


def assert_tiered_and_readable(partition: Partition, values: list[bytes]) -> None:
    partition.wait_until_tiered()
    partition.wait_until_only_active_is_local()
    cluster, name = partition.deployment.cluster, partition.name
    assert [r.value for r in consumed(cluster, name)] == values
    partition.assert_finished_is_complete()


def test_a_certificate_of_another_authority_is_refused_and_replaced_without_a_restart(
    jar: Path, secured: SecuredWorld, tmp_path: Path
) -> None:
    elsewhere = CertificateAuthority(tmp_path, "elsewhere-ca")
    shown = elsewhere.issue("broker", uris=[BROKER])
    settings = secured.broker_settings(jar, shown)
    with kafka_broker(tmp_path / "broker", settings) as broker:
        deployment = Deployment(broker, secured.world)
        partition = deployment.create_one("distrusted", local_retention_bytes="1")
        values = partition.produce()
        address = secured.world.rlmm.address
        eventually(has_line(deployment, f"RLMM at {address} does not serve"), DEADLINE_MS)
        assert partition.finished() == []
        right = secured.issue_broker("known")
        for old, new in ((shown.key, right.key), (shown.certificate, right.certificate)):
            old.write_bytes(new.read_bytes())
        assert_tiered_and_readable(partition, values)


def test_a_broker_without_a_grant_is_named_and_tiers_once_it_has_one(
    jar: Path, secured: SecuredWorld, tmp_path: Path
) -> None:
    settings = secured.broker_settings(jar, secured.issue_broker("new-broker", NEW_BROKER))
    with kafka_broker(tmp_path, settings) as broker:
        deployment = Deployment(broker, secured.world)
        partition = deployment.create_one("denied", local_retention_bytes="1")
        values = partition.produce()
        refusal = f"RLMM at {secured.world.rlmm.address} refuses the broker"
        eventually(has_line(deployment, refusal, NEW_BROKER, "needs one of the roles"), DEADLINE_MS)
        assert partition.finished() == []
        with secured.policy.open("a") as policy:
            policy.write(GRANT_TO_NEW_BROKER)
        assert_tiered_and_readable(partition, values)
    engine = create_engine(secured.world.database_url)
    query = text("SELECT DISTINCT actor FROM events WHERE topic_id = :topic_id")
    with engine.connect() as connection:
        actors = connection.execute(query, {"topic_id": partition.name.topic_id}).scalars().all()
    engine.dispose()
    assert actors == [NEW_BROKER]


def test_authority_and_certificates_are_rotated_while_a_broker_tiers(
    jar: Path, secured: SecuredWorld, tmp_path: Path
) -> None:
    """The last test of the module: the first authority issues no more."""
    shown = secured.issue_broker("broker")
    parties = secured.parties(shown)
    with kafka_broker(tmp_path / "broker", secured.broker_settings(jar, shown)) as broker:
        deployment = Deployment(broker, secured.world)
        partition = deployment.create_one("rotated", local_retention_bytes="1")
        values = partition.produce()
        for rotation in range(ROTATIONS):
            parties.rotate(tmp_path, f"successor-{rotation}")
            values += partition.produce()
        assert_tiered_and_readable(partition, values)
        log = deployment.broker_log()
        for service in ("RSM", "RLMM"):
            reloads = [line for line in log if "TLS files reloaded" in line and service in line]
            assert len(reloads) >= ROTATIONS, log
        assert [line for line in log if "does not serve" in line] == []
