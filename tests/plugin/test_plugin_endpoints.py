"""An endpoint that is wrong costs the tiering and nothing else;
settings that cannot be right stop the broker at its start, with a line that names the property."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from demos.kafka_broker import plugin_settings
from services.local.process import LOOPBACK, ProcessError
from tests.harness.eventually import eventually
from tests.harness.kafka_broker import kafka_broker
from tests.harness.local_servers import free_ports
from tests.harness.variants import first_of
from tests.harness.world import World
from tests.plugin.deployment import IMPATIENT, Deployment

pytestmark = pytest.mark.plugin

SEGMENTS = 5
LINES_AT_MOST = 12


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all brokers here, one after another; formatted by the first."""
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def right(jar: Path, services: World) -> dict[str, str]:
    return {**IMPATIENT, **plugin_settings(jar, services.rsm.address, services.rlmm.address)}


@pytest.fixture
def unused() -> str:
    """An address at which nothing listens."""
    (port,) = free_ports(1)
    return f"{LOOPBACK}:{port}"


@pytest.fixture(params=first_of(["rlmm-rsm", "rsm-unused", "rsm-rlmm"]))
def wrong(request: pytest.FixtureRequest, services: World, unused: str) -> tuple[str, str]:
    """A property and its wrong value."""
    addresses = {"unused": unused, "rsm": services.rsm.address, "rlmm": services.rlmm.address}
    service, _, place = request.param.partition("-")
    return f"{service}.config.endpoint", addresses[place]


def test_wrong_endpoint_stops_only_tiering(
    directory: Path, right: dict[str, str], services: World, wrong: tuple[str, str]
) -> None:
    property_name, address = wrong
    with kafka_broker(directory, {**right, property_name: address}) as broker:
        deployment = Deployment(broker, services)
        partition = deployment.create_one("misled", local_retention_bytes="1")
        values = partition.produce()

        def complaints() -> list[str]:
            return [line for line in deployment.broker_log() if address in line]

        eventually(complaints)
        assert partition.values() == values
        assert len(partition.local_segments()) == SEGMENTS
        assert partition.finished() == []
        assert len(complaints()) <= LINES_AT_MOST
    with kafka_broker(directory, right) as broker:
        put_right = replace(partition, deployment=Deployment(broker, services))
        put_right.wait_until_moved()
        assert put_right.values() == values
        put_right.assert_finished_is_complete()
        put_right.assert_every_object_has_a_row()


@pytest.mark.parametrize(
    "property_name",
    first_of(
        f"{service}.config.{name}"
        for service in ("rsm", "rlmm")
        for name in ("endpoint", "security.protocol")
    ),
)
@pytest.mark.parametrize("value", [None, "localhost"], ids=["missing", "malformed"])
def test_invalid_setting_prevents_the_start(
    directory: Path, right: dict[str, str], property_name: str, value: str | None
) -> None:
    settings = {name: text for name, text in right.items() if name != property_name}
    if value is not None:
        settings[property_name] = value
    with pytest.raises(ProcessError, match="exited with 1 while starting"):
        kafka_broker(directory, settings).start()
    log = (directory / "broker.log").read_text()
    reasons = re.findall(r"^\S+ConfigException: (.+)$", log, re.MULTILINE)
    assert any(property_name in reason for reason in reasons), log
