"""What a poller needs before it can begin."""

import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from services.rlm.kafka_admin.client import KafkaClientMissingError, connect_admin
from services.rlm.settings import RlmSettings


def settings(**given: str) -> RlmSettings:
    ours = {"rsm_address": "rsm:1", "rlmm_address": "rlmm:1", "partition_source": "poller"}
    return RlmSettings.model_validate({**ours, **given}, strict=False)


def test_it_asks_the_brokers_that_it_is_given() -> None:
    polled = settings(log_dirs="/var/kafka", bootstrap_servers="one:9092, two:9092")
    assert polled.bootstrap_servers == ("one:9092", "two:9092")
    assert (polled.partition_poll_interval_ms, polled.deletion_confirm_ms) == (30_000, 3_600_000)
    assert polled.kafka_client_config_file is None


@pytest.mark.parametrize(("given", "meant"), [("/etc/a", Path("/etc/a")), ("", None)])
def test_a_file_of_client_properties_may_be_named(given: str, meant: Path | None) -> None:
    polled = settings(
        log_dirs="/var/kafka", bootstrap_servers="one:9092", kafka_client_config_file=given
    )
    assert polled.kafka_client_config_file == meant


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"log_dirs": "/var/kafka"}, "poller needs RLM_BOOTSTRAP_SERVERS"),
        ({"bootstrap_servers": "one:9092"}, "poller needs RLM_LOG_DIRS"),
        ({"log_dirs": "/var/kafka", "bootstrap_servers": "one"}, "must be HOST:PORT"),
    ],
)
def test_what_is_missing_is_named(given: dict[str, str], missing: str) -> None:
    with pytest.raises(ValidationError, match=missing):
        settings(**given)


@pytest.mark.parametrize("missing", ["kafka", "javaproperties"])
def test_without_a_kafka_client_it_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(KafkaClientMissingError, match=r"pip install -e '\.\[kafka\]'") as told:
        connect_admin(["one:9092"])
    assert sys.executable in str(told.value)
