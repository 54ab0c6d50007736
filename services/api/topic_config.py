"""Read and check a topic's settings under Kafka's names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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

T = TypeVar("T")


class RetentionOwner(Enum):
    """The only service that deletes a topic's segments by the rules of retention."""

    BROKER = "broker"
    RLM = "rlm"
    SWEEP = "sweep"


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
        hold: no rule deletes anything of the topic (legal hold).
        sweep_paused: sweeps delete nothing of the topic.
        owner: whom `sediment usage` counts the topic for; None if not set.
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
    hold: bool = False
    sweep_paused: bool = False
    owner: str | None = None

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
    """

    topic_id: UUID
    topic: str
    entries: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    revision: int = 0

    @property
    def config(self) -> TopicConfig:
        return _topic_config(tuple(self.entries.items()))


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
            f"{_shown(unknown[0][:64])}: no such setting of a topic; there are {known}"
        )
    values = {_FIELDS[name]: _READERS[name](name, text) for name, text in entries.items()}
    values.pop("", None)
    config = TopicConfig(**values)  # type: ignore[arg-type]  # each reader answers its field's type
    _check_local("local.retention.ms", config.local_retention_ms, config.retention_ms)
    _check_local("local.retention.bytes", config.local_retention_bytes, config.retention_bytes)
    _check_copy_disabled(config)
    local_ms, local_bytes = (
        config.effective_local_retention_ms,
        config.effective_local_retention_bytes,
    )
    _check_lag("remote.copy.lag.ms", config.remote_copy_lag_ms, local_ms)
    _check_lag("remote.copy.lag.bytes", config.remote_copy_lag_bytes, local_bytes)
    return config


def _shown(name: str) -> str:
    """Quote a text, and escape what is invisible or would break the line."""
    return name if name.isprintable() else ascii(name)


def check_change(before: TopicConfig, after: TopicConfig) -> None:
    """Refuse to disable tiering unless the tiered data may be deleted (KIP-950).

    Raises:
        InvalidRequestError: if remote.storage.enable changes from true without
            remote.log.delete.on.disable.
    """
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


def _check_lag(name: str, lag: int | None, local: int) -> None:
    fits = lag is None or lag <= 0 or local == UNLIMITED or lag <= local
    require(fits, name, f"must not be longer than the local retention {local}, is {lag}")


def _boolean(name: str, text: str) -> bool:
    require(text in ("true", "false"), name, f"must be true or false, is {text[:64]!r}")
    return text == "true"


def _number(at_least: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        digits = text.removeprefix("-")
        is_number = digits.isascii() and digits.isdecimal()
        require(is_number, name, f"must be a whole number, is {text[:64]!r}")
        in_range = len(digits) <= len(str(INT64_MAX)) and at_least <= int(text) <= INT64_MAX
        require(in_range, name, f"must be {at_least} to 2^63-1, is {text[:64]}")
        return int(text)

    return read


def _owner(name: str, text: str) -> RetentionOwner:
    names = [owner.value for owner in RetentionOwner]
    require(text in names, name, f"must be one of {', '.join(names)}, is {text[:64]!r}")
    return RetentionOwner(text)


MAX_OWNER_LENGTH = 64


def _label(name: str, text: str) -> str:
    fits = 1 <= len(text) <= MAX_OWNER_LENGTH and text.isprintable() and text == text.strip()
    require(fits, name, f"must be 1 to {MAX_OWNER_LENGTH} printable characters, is {text[:64]!r}")
    return text


def _cleanup_policy(name: str, text: str) -> None:
    known = text in ("", "delete")
    require(known, name, f"a tiered topic can only have delete, is {text[:64]!r}")


_Reader = Callable[[str, str], object]

_SETTINGS: tuple[tuple[str, str, _Reader], ...] = (
    ("cleanup.policy", "", _cleanup_policy),
    ("remote.storage.enable", "remote_storage_enable", _boolean),
    ("retention.ms", "retention_ms", _number(UNLIMITED)),
    ("retention.bytes", "retention_bytes", _number(UNLIMITED)),
    ("local.retention.ms", "local_retention_ms", _number(AS_RETENTION)),
    ("local.retention.bytes", "local_retention_bytes", _number(AS_RETENTION)),
    ("remote.log.copy.disable", "remote_log_copy_disable", _boolean),
    ("remote.log.delete.on.disable", "remote_log_delete_on_disable", _boolean),
    ("remote.copy.lag.ms", "remote_copy_lag_ms", _number(AS_LOCAL_RETENTION)),
    ("remote.copy.lag.bytes", "remote_copy_lag_bytes", _number(AS_LOCAL_RETENTION)),
    ("sediment.retention.owner", "retention_owner", _owner),
    ("sediment.hold", "hold", _boolean),
    ("sediment.sweep.paused", "sweep_paused", _boolean),
    ("sediment.owner", "owner", _label),
)

_FIELDS = {name: attribute for name, attribute, _ in _SETTINGS}
_READERS = {name: read for name, _, read in _SETTINGS}


def kept_because(config: TopicConfig) -> str:
    """Return why the tier keeps a disabled topic's data; empty if the data is deleted."""
    if not config.remote_log_delete_on_disable:
        return (
            "the tier keeps its data because remote.log.delete.on.disable is not true; set it for "
            "the topic to delete the data"
        )
    if config.hold:
        return "the tier keeps its data because sediment.hold is set"
    if config.retention_owner is RetentionOwner.SWEEP and config.sweep_paused:
        return "the tier keeps its data because sediment.sweep.paused is set and the sweep owns it"
    return ""
