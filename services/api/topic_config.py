"""Read and check a topic's settings under Kafka's names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from services.api.errors import InvalidRequestError
from services.api.validation import INT64_MAX, require

UNLIMITED = -1

AS_RETENTION = -2
"""A local retention that is as long as the total retention."""

AS_LOCAL_RETENTION = -1
"""A copy lag that is as long as the local retention; unlimited if the local retention is."""

DEFAULT_DELETE_GRACE_MS = 24 * 60 * 60 * 1000
MAX_DELETE_GRACE_MS = 3_650 * DEFAULT_DELETE_GRACE_MS
"""Ten years: a time that long from now can be stored and printed."""
MIN_TAIL_COPY_MS = 1_000
"""Each tail is a segment with objects and rows of its own."""
CHANGE_DELAY = "sediment.retention.change.delay.ms"
CHANGE_DELAY_MS = 24 * 60 * 60 * 1000
MAX_CHANGE_DELAY_MS = 365 * CHANGE_DELAY_MS

LOCAL_RETENTION_OWNER = "sediment.local.retention.owner"
BROKER_RETENTION_MS = "sediment.local.retention.broker.ms"
BROKER_RETENTION_BYTES = "sediment.local.retention.broker.bytes"

T = TypeVar("T")


class RetentionOwner(Enum):
    """The only service that deletes a topic's segments by the rules of retention."""

    BROKER = "broker"
    RLM = "rlm"
    SWEEP = "sweep"


class LocalRetentionOwner(Enum):
    """The only one that deletes a topic's local records.

    BROKER: by its own retention, whatever is in the tier. RLM: by local.retention.*, once they are.
    """

    BROKER = "broker"
    RLM = "rlm"


def is_internal_topic(topic: str) -> bool:
    """Return whether a topic is Kafka's own (`__consumer_offsets`, ...), which is never tiered."""
    return topic.startswith("__")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of a topic, read from their texts by `topic_config`; the names are Kafka's.

    A setting that is not set imposes no limit: without retention.ms and retention.bytes the tier
    keeps everything (Kafka's default of seven days would delete the logs of users who set nothing).

    Attributes:
        remote_storage_enable: None if not set.
        retention_ms, retention_bytes: of the tier and the local log together; UNLIMITED: no limit.
        local_retention_ms, local_retention_bytes: of the local log; AS_RETENTION: as the above.
        remote_copy_lag_ms, remote_copy_lag_bytes: how long a rolled segment waits for its copy
            (KIP-1241); AS_LOCAL_RETENTION: as the effective local retention; None if not set: RLM's
            settings apply.
        retention_owner: None if any service may delete; RLM does, and sweeps skip the topic.
        owner: whom `sediment usage` counts the topic for; None if not set.
        tail_copy_ms: the age at which records are copied before their segment rolls, as a tail;
            None: never.
        delete_grace_ms: how long the objects of a segment stay after a broker has marked it.
        retention_change_delay_ms: how long a deletion waits that only a change of settings wants.
        local_retention_owner: who deletes local records.
        local_retention_broker_ms, local_retention_broker_bytes: the brokers' own retention of the
            topic, while it is RLM that deletes; None if the topic had none of its own.
    """

    remote_storage_enable: bool | None = None
    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED
    local_retention_ms: int = AS_RETENTION
    local_retention_bytes: int = AS_RETENTION
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    remote_copy_lag_ms: int | None = None
    remote_copy_lag_bytes: int | None = None
    retention_owner: RetentionOwner | None = None
    owner: str | None = None
    tail_copy_ms: int | None = None
    delete_grace_ms: int = DEFAULT_DELETE_GRACE_MS
    retention_change_delay_ms: int = CHANGE_DELAY_MS
    local_retention_owner: LocalRetentionOwner = LocalRetentionOwner.BROKER
    local_retention_broker_ms: int | None = None
    local_retention_broker_bytes: int | None = None

    @property
    def is_trimmed_by_rlm(self) -> bool:
        return self.local_retention_owner is LocalRetentionOwner.RLM

    @property
    def effective_local_retention_ms(self) -> int:
        """Return the local retention in ms; UNLIMITED: no limit."""
        local = self.local_retention_ms
        return self.retention_ms if local == AS_RETENTION else local

    @property
    def effective_local_retention_bytes(self) -> int:
        """Return the local retention in bytes; UNLIMITED: no limit."""
        local = self.local_retention_bytes
        return self.retention_bytes if local == AS_RETENTION else local


@dataclass(frozen=True, slots=True)
class StoredTopicConfig:
    """The settings of a topic as RLMM stores them.

    Attributes:
        entries: the texts as they were put, by name; a name that is missing is not set.
        revision: grows by one with every put that changes the settings; 0 if never put.
        waits_until_ms: until then a deletion that `earlier` does not want waits; None if the
            settings delete no more than `earlier`. By the database's clock.
        deletions_confirmed_by: who let deletions by these settings pass the bound of a day; None if
            they were not confirmed.
        earlier: the settings that were in force retention_change_delay_ms ago: the latest put that
            is as old or took effect at once, empty if there is none. Empty if no change waits.
    """

    topic_id: UUID
    topic: str
    entries: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    revision: int = 0
    waits_until_ms: int | None = None
    deletions_confirmed_by: str | None = None
    earlier: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def config(self) -> TopicConfig:
        return _topic_config(tuple(self.entries.items()))

    @property
    def earlier_config(self) -> TopicConfig:
        """Return the settings that must want a deletion too: `config` if no change waits."""
        entries = self.entries if self.waits_until_ms is None else self.earlier
        return _topic_config(tuple(entries.items()))

    @property
    def disabling_waits(self) -> bool:
        """Return whether only the present settings let the data of a disabled topic be deleted."""
        return _disables_more(self.config, self.earlier_config)


@lru_cache(1024)
def _topic_config(entries: tuple[tuple[str, str], ...]) -> TopicConfig:
    return topic_config(dict(entries))


def topic_config(entries: Mapping[str, str]) -> TopicConfig:
    """Read a topic's settings from their texts, and check their combination as Kafka does.

    Source: LogConfig.validateNames and validateTopicLogConfigValues.

    Raises:
        InvalidRequestError: if a name is unknown, a value is out of bounds, or settings contradict
            each other; the message begins with the name.
    """
    unknown = sorted(set(entries) - set(_READERS))
    if unknown:
        known = ", ".join(sorted(_READERS))
        raise InvalidRequestError(
            f"{_quoted(unknown[0][:64])}: no such setting of a topic; there are {known}"
        )
    values = {_FIELDS[name]: _READERS[name](name, text) for name, text in entries.items()}
    values.pop("cleanup_policy", None)
    config = TopicConfig(**values)  # type: ignore[arg-type]  # each reader answers its field's type
    _check_local("local.retention.ms", config.local_retention_ms, config.retention_ms)
    _check_local("local.retention.bytes", config.local_retention_bytes, config.retention_bytes)
    _check_copy_disabled(config)
    _check_local_owner(config)
    local_ms, local_bytes = (
        config.effective_local_retention_ms,
        config.effective_local_retention_bytes,
    )
    _check_lag("remote.copy.lag.ms", config.remote_copy_lag_ms, local_ms)
    _check_lag("remote.copy.lag.bytes", config.remote_copy_lag_bytes, local_bytes)
    return config


def deletes_more(config: TopicConfig, earlier: TopicConfig) -> bool:
    """Return whether settings may delete what earlier ones do not.

    Looser limits delete no segment that tighter ones keep: both scans begin at the log start.
    """
    limits = (
        (config.retention_ms, earlier.retention_ms),
        (config.retention_bytes, earlier.retention_bytes),
    )
    lowered = any(new != UNLIMITED and (old == UNLIMITED or new < old) for new, old in limits)
    return lowered or _disables_more(config, earlier)


def _disables_more(config: TopicConfig, earlier: TopicConfig) -> bool:
    is_disabled, was_disabled = (c.remote_storage_enable is False for c in (config, earlier))
    is_new = not earlier.remote_log_delete_on_disable or (is_disabled and not was_disabled)
    return config.remote_log_delete_on_disable and is_new


def _quoted(name: str) -> str:
    """Quote a text, and escape what is invisible or would break the line."""
    return name if name.isprintable() else ascii(name)


def check_change(before: TopicConfig, after: TopicConfig, *, now: bool) -> None:
    """Refuse to disable tiering unless the tiered data may be deleted (KIP-950), and a lower delay.

    Raises:
        InvalidRequestError: if remote.storage.enable changes from true without
            remote.log.delete.on.disable, or the delay is lowered without `now`.
    """
    old, new = before.retention_change_delay_ms, after.retention_change_delay_ms
    require(
        now or new >= old,
        CHANGE_DELAY,
        f"is lowered from {old} to {new}, which shortens waits at once; put the settings with "
        "--now, for which the policy has the role overrider",
    )
    disabled = before.remote_storage_enable is True and after.remote_storage_enable is not True
    require(
        not disabled or after.remote_log_delete_on_disable,
        "remote.storage.enable",
        "cannot be turned off without remote.log.delete.on.disable=true, which deletes what is "
        "in the tier",
    )


def _check_local(name: str, local: int, total: int) -> None:
    if total == UNLIMITED or local == AS_RETENTION:
        return
    total_name = name.removeprefix("local.")
    fits = local != UNLIMITED and local <= total
    require(fits, name, f"must not be longer than {total_name} {total}, is {local}")


def _check_copy_disabled(config: TopicConfig) -> None:
    """Require, if copying is disabled, a local retention as long as the total one."""
    if not config.remote_log_copy_disable:
        return
    for name, local, total in (
        ("local.retention.ms", config.local_retention_ms, config.retention_ms),
        ("local.retention.bytes", config.local_retention_bytes, config.retention_bytes),
    ):
        rule = (
            f"must be {total}, as {name.removeprefix('local.')}, or {AS_RETENTION} while "
            f"remote.log.copy.disable is true, is {local}"
        )
        require(local in (AS_RETENTION, total), name, rule)


def _check_local_owner(config: TopicConfig) -> None:
    """Refuse to forget the brokers' retention, and to delete the tier's part of a trimmed topic."""
    kept = config.local_retention_broker_ms, config.local_retention_broker_bytes
    rule = "is rlm's to remember; unset it with sediment.local.retention.owner"
    require(config.is_trimmed_by_rlm or kept == (None, None), BROKER_RETENTION_MS, rule)
    deletes = config.remote_storage_enable is False and config.remote_log_delete_on_disable
    require(
        not (config.is_trimmed_by_rlm and deletes),
        LOCAL_RETENTION_OWNER,
        "is rlm, so that the tier has what brokers no longer have: unset it before the topic's "
        "part of the tier may be deleted",
    )


def _check_lag(name: str, lag: int | None, local: int) -> None:
    fits = lag is None or lag <= 0 or local == UNLIMITED or lag <= local
    require(fits, name, f"must not be longer than the local retention {local}, is {lag}")


def _boolean(name: str, text: str) -> bool:
    require(text in ("true", "false"), name, f"must be true or false, is {text[:64]!r}")
    return text == "true"


def _number(at_least: int, at_most: int = INT64_MAX) -> Callable[[str, str], int]:
    most = "2^63-1" if at_most == INT64_MAX else str(at_most)

    def read(name: str, text: str) -> int:
        digits = text.removeprefix("-")
        is_number = digits.isascii() and digits.isdecimal()
        require(is_number, name, f"must be a whole number, is {text[:64]!r}")
        in_range = len(digits) <= len(str(INT64_MAX)) and at_least <= int(text) <= at_most
        require(in_range, name, f"must be {at_least} to {most}, is {text[:64]}")
        return int(text)

    return read


def _one_of(owners: type[Enum]) -> Callable[[str, str], Enum]:
    names = [owner.value for owner in owners]

    def read(name: str, text: str) -> Enum:
        require(text in names, name, f"must be one of {', '.join(names)}, is {text[:64]!r}")
        return owners(text)

    return read


MAX_OWNER_LENGTH = 64


def _label(name: str, text: str) -> str:
    fits = 1 <= len(text) <= MAX_OWNER_LENGTH and text.isprintable() and text == text.strip()
    require(fits, name, f"must be 1 to {MAX_OWNER_LENGTH} printable characters, is {text[:64]!r}")
    return text


def _cleanup_policy(name: str, text: str) -> None:
    known = text in ("", "delete")
    require(known, name, f"a tiered topic can only have delete, is {text[:64]!r}")


_total, _local, _lag = map(_number, (UNLIMITED, AS_RETENTION, AS_LOCAL_RETENTION))
_grace = _number(0, MAX_DELETE_GRACE_MS)
_tail = _number(MIN_TAIL_COPY_MS)

_SETTINGS: tuple[tuple[str, Callable[[str, str], object], str], ...] = (
    ("cleanup.policy", _cleanup_policy, "delete: what is tiered is not compacted"),
    ("remote.storage.enable", _boolean, "false: RLM copies nothing"),
    ("retention.ms", _total, "how long a record stays, in tier and local log, ms; -1: for ever"),
    ("retention.bytes", _total, "how much of a partition stays, bytes; -1: all"),
    ("local.retention.ms", _local, "how long a record stays in the local log, ms; -2: as above"),
    ("local.retention.bytes", _local, "how much of a partition stays there, bytes; -2: as above"),
    ("remote.log.copy.disable", _boolean, "true: RLM copies no more"),
    ("remote.log.delete.on.disable", _boolean, "true: tiering may end; its data is deleted then"),
    ("remote.copy.lag.ms", _lag, "how long a segment waits for its copy, ms; -1: local retention"),
    ("remote.copy.lag.bytes", _lag, "how much of a partition waits, bytes; -1: local retention"),
    ("sediment.tail.copy.ms", _tail, "how old records get before a tail of the log is copied, ms"),
    (
        "sediment.retention.owner",
        _one_of(RetentionOwner),
        "who deletes what is due: broker, rlm or sweep",
    ),
    (LOCAL_RETENTION_OWNER, _one_of(LocalRetentionOwner), "who deletes local records: broker, rlm"),
    (BROKER_RETENTION_MS, _total, "the brokers' retention.ms before RLM deleted; RLM puts it back"),
    (BROKER_RETENTION_BYTES, _total, "the brokers' retention.bytes before RLM deleted"),
    ("sediment.delete.grace.ms", _grace, "how long objects stay after a broker's deletion, ms"),
    ("sediment.owner", _label, "whom `sediment usage` counts the topic for"),
    (
        CHANGE_DELAY,
        _number(0, MAX_CHANGE_DELAY_MS),
        "how long a deletion waits that only changed settings want, ms; 0: not at all",
    ),
)

_FIELDS = {name: name.removeprefix("sediment.").replace(".", "_") for name, _, _ in _SETTINGS}
_READERS = {name: read for name, read, _ in _SETTINGS}
MEANINGS = {name: meaning for name, _, meaning in _SETTINGS}
"""What each setting is for, and its unit."""


def reason_to_retain(stored: StoredTopicConfig) -> str:
    """Return why the tier keeps a disabled topic's data; empty if the data is deleted."""
    config = stored.config
    if not config.remote_log_delete_on_disable:
        return (
            "the tier keeps its data because remote.log.delete.on.disable is not true; set it for "
            "the topic to delete the data"
        )
    if stored.waits_until_ms is not None and stored.disabling_waits:
        until = datetime.fromtimestamp(stored.waits_until_ms / 1000, UTC)
        return (
            f"the tier keeps its data until {until:%Y-%m-%dT%H:%M:%SZ} because the settings "
            "changed; until then remote.storage.enable=true keeps it for good, and the same "
            "settings put with --now delete it at once"
        )
    return ""
