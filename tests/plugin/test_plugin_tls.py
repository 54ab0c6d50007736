"""A broker tiers over mutual TLS, and authority and certificates change while it runs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from demos.kafka_broker import plugin_settings
from services.api.roles import Role
from services.local.certificates import Certificate, CertificateAuthority
from tests.harness.certificates import Parties
from tests.harness.databases import Store
from tests.harness.eventually import eventually
from tests.harness.kafka_broker import kafka_broker
from tests.harness.secured import Deployment as SecuredFiles
from tests.harness.secured import spiffe
from tests.harness.world import World, running_world
from tests.plugin.deployment import IMPATIENT, Deployment, Partition
from tests.plugin.tiered_partition import DEADLINE_MS

pytestmark = pytest.mark.plugin

BROKER, NEW_BROKER = spiffe("broker"), spiffe("new-broker")
OF_A_BROKER = (Role.SHIPPER, Role.READER, Role.DELETER)
ROTATIONS = 2


@dataclass(frozen=True)
class SecuredWorld:
    """Services that require of every client a certificate of one authority."""

    world: World
    files: SecuredFiles
    operator: Certificate

    def issue_broker(self, name: str, uri: str = BROKER) -> Certificate:
        """Make a certificate for a broker's identity, in files of this name."""
        return self.files.authority.issue(name, uris=[uri])

    def parties(self, broker: Certificate) -> Parties:
        """Return all who use the authority."""
        addresses = (self.world.rsm.address, self.world.rlmm.address)
        operator = self.operator
        return Parties(
            self.files.authority.certificate,
            dict.fromkeys(addresses, self.files.server),
            [operator, broker],
            {operator.certificate.stem: spiffe("operator"), broker.certificate.stem: BROKER},
        )

    def broker_settings(self, jar: Path, shown: Certificate) -> dict[str, str]:
        """Return the properties of a broker that shows this certificate to both services."""
        security = self.files.with_certificate(shown)
        world = self.world
        settings = plugin_settings(jar, world.rsm.address, world.rlmm.address, security)
        return {**IMPATIENT, **settings}


@pytest.fixture(scope="module")
def secured(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredWorld]:
    directory = tmp_path_factory.mktemp("secured")
    files = SecuredFiles(directory)
    files.grant(spiffe("operator"), *Role)
    files.grant(BROKER, *OF_A_BROKER)
    tls = files.environment("RSM") | files.environment("RLMM")
    operator = files.authority.issue("operator", uris=[spiffe("operator")])
    security = files.with_certificate(operator)
    with running_world(directory, *store, directory, tls, security) as world:
        yield SecuredWorld(world, files, operator)


def has_line(deployment: Deployment, *words: str) -> Callable[[], bool]:
    return lambda: any(all(w in line for w in words) for line in deployment.broker_log())


def assert_tiered_and_readable(partition: Partition, values: list[bytes]) -> None:
    partition.wait_until_moved()
    assert partition.values() == values
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
        secured.files.grant(NEW_BROKER, *OF_A_BROKER)
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
