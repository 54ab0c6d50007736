"""Test the settings that a poller requires."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from services.rlm.kafka_admin.security import KafkaSecurity, SaslMechanism, SecurityProtocol
from services.rlm.settings import RlmSettings

POLLER = {"log_dirs": "/var/kafka", "bootstrap_servers": "one:9093"}


def settings(**given: str) -> RlmSettings:
    ours = {"rsm_address": "rsm:1", "rlmm_address": "rlmm:1", "partition_source": "poller"}
    return RlmSettings.model_validate({**ours, **given}, strict=False)


def test_it_asks_the_brokers_that_it_is_given() -> None:
    polled = settings(log_dirs="/var/kafka", bootstrap_servers="one:9092, two:9092")
    assert polled.bootstrap_servers == ("one:9092", "two:9092")
    assert polled.deletion_confirm_ms == 3_600_000
    assert polled.kafka_security() == KafkaSecurity()


def test_a_cluster_may_be_watched_without_its_directories() -> None:
    watching = settings(bootstrap_servers="one:9092", cluster_id="c")
    assert (watching.log_dirs, watching.cluster_id) == ((), "c")
    assert settings(**POLLER, cluster_id="").cluster_id is None


def test_connections_may_be_secured() -> None:
    polled = settings(
        log_dirs="/var/kafka",
        bootstrap_servers="one:9093",
        kafka_security_protocol="SASL_SSL",
        kafka_sasl_mechanism="SCRAM-SHA-512",
        kafka_username="rlm",
        kafka_password_file="/etc/password",
        kafka_ssl_ca_file="/etc/ca.pem",
        kafka_ssl_certificate_file="",
    )
    assert polled.kafka_security() == KafkaSecurity(
        SecurityProtocol.SASL_SSL,
        SaslMechanism.SCRAM_SHA_512,
        "rlm",
        Path("/etc/password"),
        Path("/etc/ca.pem"),
    )


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"log_dirs": "/var/kafka"}, "poller needs RLM_BOOTSTRAP_SERVERS"),
        ({"bootstrap_servers": "one:9092"}, "poller needs RLM_LOG_DIRS.* or.* RLM_CLUSTER_ID"),
        ({"cluster_id": "c"}, "poller needs RLM_BOOTSTRAP_SERVERS"),
        (POLLER | {"cluster_id": "c"}, "RLM_CLUSTER_ID has no use here"),
        ({"cluster_id": "c", "partition_source": "static"}, "RLM_CLUSTER_ID has no use here"),
        ({"log_dirs": "/var/kafka", "bootstrap_servers": "one"}, "is not HOST:PORT"),
        (
            POLLER | {"kafka_security_protocol": "SASL_SSL"},
            "SASL_SSL needs RLM_KAFKA_SASL_MECHANISM",
        ),
    ],
)
def test_missing_setting_is_named(given: dict[str, str], missing: str) -> None:
    with pytest.raises(ValidationError, match=missing):
        settings(**given)
