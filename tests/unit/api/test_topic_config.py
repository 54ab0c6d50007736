"""Test a topic's settings: bounds and contradictions (Kafka: RemoteTopicCrudTest)."""

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from services.api.errors import InvalidRequestError
from services.api.topic_config import (
    AS_RETENTION,
    CHANGE_DELAY,
    UNLIMITED,
    RetentionOwner,
    StoredTopicConfig,
    TopicConfig,
    check_change,
    deletes_more,
    reason_to_retain,
    topic_config,
)

INT64_MAX = 2**63 - 1
NUMBERS = {
    "retention.ms": ("retention_ms", UNLIMITED),
    "retention.bytes": ("retention_bytes", UNLIMITED),
    "local.retention.ms": ("local_retention_ms", AS_RETENTION),
    "local.retention.bytes": ("local_retention_bytes", AS_RETENTION),
    "remote.copy.lag.ms": ("remote_copy_lag_ms", -1),
    "remote.copy.lag.bytes": ("remote_copy_lag_bytes", -1),
}
BOOLEANS = {
    "remote.storage.enable": "remote_storage_enable",
    "remote.log.copy.disable": "remote_log_copy_disable",
    "remote.log.delete.on.disable": "remote_log_delete_on_disable",
}


def test_if_nothing_is_set_nothing_is_limited() -> None:
    config = topic_config({})
    assert config == TopicConfig()
    assert (config.retention_ms, config.retention_bytes) == (UNLIMITED, UNLIMITED)
    assert (config.local_retention_ms, config.local_retention_bytes) == (AS_RETENTION, AS_RETENTION)
    assert (config.remote_copy_lag_ms, config.remote_copy_lag_bytes) == (None, None)
    assert config.remote_storage_enable is None
    assert config.retention_owner is None


def test_all_settings_together() -> None:
    entries = {
        "cleanup.policy": "delete",
        "remote.storage.enable": "true",
        "retention.ms": "604800000",
        "retention.bytes": "1000",
        "local.retention.ms": "1000",
        "local.retention.bytes": "100",
        "remote.log.copy.disable": "false",
        "remote.log.delete.on.disable": "true",
        "remote.copy.lag.ms": "10",
        "remote.copy.lag.bytes": "20",
        "sediment.retention.owner": "sweep",
        "sediment.owner": "team payments",
    }
    expected = TopicConfig(
        remote_storage_enable=True,
        retention_ms=604_800_000,
        retention_bytes=1000,
        local_retention_ms=1000,
        local_retention_bytes=100,
        remote_log_copy_disable=False,
        remote_log_delete_on_disable=True,
        remote_copy_lag_ms=10,
        remote_copy_lag_bytes=20,
        retention_owner=RetentionOwner.SWEEP,
        owner="team payments",
    )
    assert topic_config(entries) == expected
    assert StoredTopicConfig(UUID(int=1), "orders", entries, 3).config == expected


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_reads_from_its_least_to_its_largest(name: str) -> None:
    attribute, least = NUMBERS[name]
    for value in (least, 0, 7, INT64_MAX):
        assert getattr(topic_config({name: str(value)}), attribute) == value


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_out_of_bounds_is_refused(name: str) -> None:
    least = NUMBERS[name][1]
    for value in (least - 1, INT64_MAX + 1, 10**19, -(10**19)):
        with pytest.raises(InvalidRequestError) as refused:
            topic_config({name: str(value)})
        assert str(refused.value) == f"{name}: must be {least} to 2^63-1, is {value}"


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "text", ["", "-", "--1", "+1", " 1", "1 ", "1.5", "1e3", "1_000", "0x10", "٣", "7d"]
)
def test_value_that_is_no_whole_number_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^{name}: must be a whole number, is "):
        topic_config({name: text})


@pytest.mark.parametrize("name", BOOLEANS)
def test_a_switch_is_true_or_false_and_nothing_else(name: str) -> None:
    assert getattr(topic_config({name: "true"}), BOOLEANS[name]) is True
    assert getattr(topic_config({name: "false"}), BOOLEANS[name]) is False
    for text in ("", "True", "yes", "1", "null"):
        with pytest.raises(InvalidRequestError, match=rf"^{name}: must be true or false, is "):
            topic_config({name: text})


@pytest.mark.parametrize("owner", RetentionOwner)
def test_an_owner_of_retention_is_one_of_three(owner: RetentionOwner) -> None:
    assert topic_config({"sediment.retention.owner": owner.value}).retention_owner is owner


@pytest.mark.parametrize("text", ["", "RLM", "nobody"])
def test_an_unknown_owner_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        topic_config({"sediment.retention.owner": text})
    expected = f"sediment.retention.owner: must be one of broker, rlm, sweep, is {text!r}"
    assert str(refused.value) == expected


@pytest.mark.parametrize("text", ["", "delete"])
def test_a_tiered_topic_may_delete_or_do_nothing(text: str) -> None:
    assert topic_config({"cleanup.policy": text}) == TopicConfig()


@pytest.mark.parametrize("text", ["compact", "compact,delete", "delete,compact"])
def test_a_tiered_topic_is_never_compacted(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^cleanup\.policy: a tiered topic"):
        topic_config({"cleanup.policy": text})


@pytest.mark.parametrize("name", ["retention.m", "segment.bytes", "Retention.ms", ""])
def test_an_unknown_setting_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        topic_config({"retention.ms": "1", name: "1"})
    message = str(refused.value)
    assert message.startswith(f"{name}: no such setting of a topic; there are cleanup.policy, ")
    assert all(known in message for known in [*NUMBERS, *BOOLEANS, "sediment.retention.owner"])


@pytest.mark.parametrize(("name", "value"), [("retention.ms", "9" * 10_000), ("n" * 10_000, "1")])
def test_a_message_does_not_repeat_a_text_of_any_length(name: str, value: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        topic_config({name: value})
    assert len(str(refused.value)) < 700


# Settings that contradict each other


@pytest.mark.parametrize("unit", ["ms", "bytes"])
@pytest.mark.parametrize(
    ("total", "local"),
    [("100", "-2"), ("100", "0"), ("100", "100"), ("-1", "-1"), ("-1", "100"), ("-1", "-2")],
)
def test_a_local_retention_within_the_whole_is_taken(unit: str, total: str, local: str) -> None:
    config = topic_config({f"retention.{unit}": total, f"local.retention.{unit}": local})
    assert getattr(config, f"local_retention_{unit}") == int(local)


@pytest.mark.parametrize("unit", ["ms", "bytes"])
@pytest.mark.parametrize(("total", "local"), [("100", "101"), ("100", "-1"), ("0", "1")])
def test_a_local_retention_beyond_the_whole_is_refused(unit: str, total: str, local: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        topic_config({f"retention.{unit}": total, f"local.retention.{unit}": local})
    assert str(refused.value) == (
        f"local.retention.{unit}: must not be longer than retention.{unit} {total}, is {local}"
    )


@pytest.mark.parametrize("unit", ["ms", "bytes"])
@pytest.mark.parametrize(
    ("total", "local", "lag"),
    [
        ("100", "50", "50"),
        ("100", "-2", "100"),
        ("100", "50", "-1"),
        ("100", "0", "0"),
        ("-1", "-1", "1000"),
        ("-1", "-2", "1000"),
    ],
)
def test_a_copy_lag_within_the_local_retention_is_taken(
    unit: str, total: str, local: str, lag: str
) -> None:
    entries = {f"retention.{unit}": total, f"local.retention.{unit}": local}
    config = topic_config({**entries, f"remote.copy.lag.{unit}": lag})
    assert getattr(config, f"remote_copy_lag_{unit}") == int(lag)


@pytest.mark.parametrize("unit", ["ms", "bytes"])
@pytest.mark.parametrize(
    ("total", "local", "lag", "effective"),
    [("100", "50", "51", 50), ("100", "-2", "101", 100), ("-1", "50", "51", 50)],
)
def test_a_copy_lag_beyond_the_local_retention_is_refused(
    unit: str, total: str, local: str, lag: str, effective: int
) -> None:
    entries = {f"retention.{unit}": total, f"local.retention.{unit}": local}
    with pytest.raises(InvalidRequestError) as refused:
        topic_config({**entries, f"remote.copy.lag.{unit}": lag})
    assert str(refused.value) == (
        f"remote.copy.lag.{unit}: must not be longer than the local retention {effective}, is {lag}"
    )


@pytest.mark.parametrize("unit", ["ms", "bytes"])
@pytest.mark.parametrize(
    ("total", "local"), [("100", "-2"), ("100", "100"), ("-1", "-1"), ("-1", "-2")]
)
def test_without_copying_the_local_retention_may_be_the_whole(
    unit: str, total: str, local: str
) -> None:
    entries = {f"retention.{unit}": total, f"local.retention.{unit}": local}
    assert topic_config({**entries, "remote.log.copy.disable": "true"}).remote_log_copy_disable


@pytest.mark.parametrize("unit", ["ms", "bytes"])
@pytest.mark.parametrize(("total", "local"), [("100", "50"), ("-1", "50")])
def test_without_copying_a_shorter_local_retention_is_refused(
    unit: str, total: str, local: str
) -> None:
    entries = {f"retention.{unit}": total, f"local.retention.{unit}": local}
    topic_config({**entries, "remote.log.copy.disable": "false"})
    with pytest.raises(InvalidRequestError) as refused:
        topic_config({**entries, "remote.log.copy.disable": "true"})
    assert str(refused.value) == (
        f"local.retention.{unit}: must be {total}, as retention.{unit}, or -2 while "
        f"remote.log.copy.disable is true, is {local}"
    )


# A change of settings


OFF: Mapping[str, str] = {"remote.storage.enable": "false"}
ON: Mapping[str, str] = {"remote.storage.enable": "true"}


@pytest.mark.parametrize("after", [OFF, {}])
def test_disabling_tiering_requires_delete_on_disable(after: Mapping[str, str]) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        check_change(topic_config(ON), topic_config(after), now=False)
    assert str(refused.value) == (
        "remote.storage.enable: cannot be turned off without remote.log.delete.on.disable=true, "
        "which deletes what is in the tier"
    )


def test_whether_the_tier_may_be_deleted_is_to_be_said_with_the_change() -> None:
    deletes = {"remote.log.delete.on.disable": "true"}
    with pytest.raises(InvalidRequestError, match=r"^remote\.storage\.enable"):
        check_change(topic_config({**ON, **deletes}), topic_config(OFF), now=False)
    check_change(topic_config(ON), topic_config({**OFF, **deletes}), now=False)


@pytest.mark.parametrize(
    ("before", "after"), [({}, OFF), ({}, ON), (OFF, ON), (OFF, OFF), (OFF, {}), (ON, ON)]
)
def test_every_other_change_is_taken(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    check_change(topic_config(before), topic_config(after), now=False)


@pytest.mark.parametrize("text", ["", " team", "a" * 65, "te\x1bam"])
def test_an_owner_is_a_short_printable_text(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"sediment\.owner: must be 1 to 64 printable"):
        topic_config({"sediment.owner": text})


# How long a change waits


@pytest.mark.parametrize(
    ("config", "earlier", "expected"),
    [
        ({"retention.ms": "5"}, {}, True),
        ({"retention.ms": "5"}, {"retention.ms": "6"}, True),
        ({"retention.ms": "6"}, {"retention.ms": "5"}, False),
        ({"retention.ms": "5"}, {"retention.ms": "5"}, False),
        ({"retention.bytes": "0"}, {"retention.bytes": "1"}, True),
        ({"retention.ms": "-1"}, {"retention.ms": "1"}, False),
        ({"retention.ms": "9", "retention.bytes": "1"}, {"retention.ms": "1"}, True),
        ({"sediment.owner": "sales"}, {}, False),
        (OFF, ON, False),
        ({**OFF, "remote.log.delete.on.disable": "true"}, OFF, True),
        (
            {**OFF, "remote.log.delete.on.disable": "true"},
            {**ON, "remote.log.delete.on.disable": "true"},
            True,
        ),
    ],
)
def test_what_deletes_more(
    config: Mapping[str, str], earlier: Mapping[str, str], expected: bool
) -> None:
    assert deletes_more(topic_config(config), topic_config(earlier)) is expected


def test_a_lower_delay_has_to_be_put_at_once() -> None:
    day, longer, none = (topic_config({CHANGE_DELAY: str(ms)}) for ms in (86_400_000, 10**9, 0))
    check_change(topic_config({}), day, now=False)
    check_change(day, longer, now=False)
    check_change(longer, none, now=True)
    for before, after in ((topic_config({}), none), (longer, day)):
        with pytest.raises(InvalidRequestError, match=rf"^{CHANGE_DELAY}: is lowered .* --now"):
            check_change(before, after, now=False)


@pytest.mark.parametrize("text", ["-1", str(366 * 86_400_000), "1d"])
def test_a_delay_is_at_most_a_year(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^{CHANGE_DELAY}: must be "):
        topic_config({CHANGE_DELAY: text})


def test_a_disabled_topic_keeps_its_data_while_the_change_waits() -> None:
    off = {**OFF, "remote.log.delete.on.disable": "true"}
    stored = StoredTopicConfig(UUID(int=1), "t", off, 2, waits_until_ms=1_000_000, earlier=ON)
    assert stored.disabling_waits
    assert reason_to_retain(stored).startswith("the tier keeps its data until 1970-01-01T00:16:40Z")
    assert reason_to_retain(replace(stored, waits_until_ms=None)) == ""
