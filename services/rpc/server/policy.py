"""Read the policy file: it grants roles on topics to identities, and denies everything else."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from services.api.roles import Role, Roles
from services.common.reloaded_file import ReloadedFile

EVERY_TOPIC = "*"
MAX_GRANTS = 10_000
MAX_TEXT_LENGTH = 2_048
_KNOWN_IDENTITIES = 4_096

AllTopics = Literal["all topics"]
ALL_TOPICS: Final[AllTopics] = "all topics"

# What `*` stands for. In an identity it does not cross a separator: broker-* grants nothing to
# broker-1/other, nor to another namespace.
_IN_AN_IDENTITY = "[^/:]*?"
_IN_A_TOPIC = ".*?"
_IN_A_GROUP = r"[\s\S]*?"  # A group may have any name.
_LEGAL_TOPIC_PATTERN = re.compile(r"[a-zA-Z0-9._*-]{1,249}")
_PRINTABLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Grant:
    """One [[grant]] of the file: these identities have these roles for these topics.

    Attributes:
        groups: of consumers, which a reader may use at RLM's listener.
    """

    identities: tuple[str, ...]
    roles: Roles
    topics: tuple[str, ...]
    groups: tuple[str, ...] = ()


class Policy:
    """All grants. Several of one identity add up, each with its own topics."""

    def __init__(self, grants: Sequence[Grant]) -> None:
        self.grants = tuple(grants)
        self._compiled = [
            (_any_of(grant.identities, _IN_AN_IDENTITY), _Granted(grant)) for grant in self.grants
        ]
        # Identities come from certificates and tokens that were verified; they may still be many.
        self._granted_to = lru_cache(_KNOWN_IDENTITIES)(self._find)

    def grants_of(self, identity: str) -> tuple[Grant, ...]:
        """Return the grants of an identity; none if the policy does not name it."""
        return tuple(granted.grant for granted in self._granted_to(identity))

    def allows(self, identity: str, roles: Roles, topic: str | AllTopics | None = None) -> bool:
        """Return whether a grant gives the identity one of the roles.

        Args:
            topic: a topic that the grant must cover; ALL_TOPICS, which only the pattern * covers;
                None if topics do not matter.
        """
        return any(
            not roles.isdisjoint(granted.grant.roles) and granted.covers(topic)
            for granted in self._granted_to(identity)
        )

    def allows_group(self, identity: str, group: str) -> bool:
        """Return whether a grant lets the identity, as a reader, use a group of consumers."""
        return any(
            Role.READER in granted.grant.roles and granted.covers_group(group)
            for granted in self._granted_to(identity)
        )

    def _find(self, identity: str) -> tuple["_Granted", ...]:
        return tuple(g for pattern, g in self._compiled if pattern.fullmatch(identity))


class _Granted:
    """A grant with its patterns compiled."""

    __slots__ = ("_covers_all", "_groups", "_topics", "grant")

    def __init__(self, grant: Grant) -> None:
        self.grant = grant
        self._covers_all = EVERY_TOPIC in grant.topics
        self._topics = _any_of(grant.topics, _IN_A_TOPIC)
        self._groups = _any_of(grant.groups, _IN_A_GROUP) if grant.groups else None

    def covers(self, topic: str | AllTopics | None) -> bool:
        if topic is None or self._covers_all:
            return True
        return topic != ALL_TOPICS and self._topics.fullmatch(topic) is not None

    def covers_group(self, group: str) -> bool:
        return self._groups is not None and self._groups.fullmatch(group) is not None


def _any_of(patterns: Sequence[str], star: str) -> "re.Pattern[str]":
    return re.compile("|".join(f"(?:{_expression(pattern, star)})" for pattern in patterns))


def _expression(pattern: str, star: str) -> str:
    """Translate a pattern to a regular expression that never backtracks over a *.

    Each part between two stars is found at its first place, as in fnmatch.
    """
    first, *parts = map(re.escape, pattern.split("*"))
    if not parts:
        return first
    *middle, last = parts
    atomic = "".join(f"(?>{star}{part})" for part in middle)
    return f"{first}{atomic}{star}{last}"


def load_policy(path: Path) -> Policy:
    """Read a policy file once.

    Raises:
        FileError: the file cannot be used.
    """
    return policy_file(path).current()


def policy_file(path: Path) -> ReloadedFile[Policy]:
    """Return the policy of a file, read again when it changes.

    Raises:
        FileError: the file cannot be used now.
    """
    return ReloadedFile("policy", path, parse_policy)


def parse_policy(content: bytes) -> Policy:
    """Parse the TOML of a policy file; strict, so that a typing mistake is never ignored.

    Raises:
        ValueError: names the line or the grant at fault.
    """
    try:
        document = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as e:
        raise ValueError(f"is not UTF-8 at byte {e.start}") from e
    except tomllib.TOMLDecodeError as e:
        raise ValueError(f"is not TOML: {e}") from e
    except RecursionError as e:
        raise ValueError("is nested too deeply") from e
    unknown = sorted(document.keys() - {"grant"})
    if unknown:
        raise ValueError(f"unknown key {_quoted(unknown[0])}; the file has only [[grant]] entries")
    grants = document.get("grant", [])
    if not isinstance(grants, list) or not all(isinstance(grant, dict) for grant in grants):
        raise ValueError("grant: write each grant as an entry [[grant]]")
    if not 1 <= len(grants) <= MAX_GRANTS:
        raise ValueError(f"has {len(grants)} grants; write 1 to {MAX_GRANTS:,} entries [[grant]]")
    return Policy([_grant(number, entry) for number, entry in enumerate(grants, 1)])


def _grant(number: int, entry: dict[str, Any]) -> Grant:
    where = f"grant {number}"
    unknown = sorted(entry.keys() - {"identities", "roles", "topics", "groups"})
    if unknown:
        raise ValueError(
            f"{where}: unknown key {_quoted(unknown[0])}; a grant has identities, roles, topics "
            "and, for a reader, groups"
        )
    identities = _texts(entry, "identities", where)
    for identity in identities:
        if not _PRINTABLE.fullmatch(identity):
            raise ValueError(f"{where}: identity {_quoted(identity)} has a space or is not ASCII")
        if not identity.strip("*"):
            raise ValueError(
                f"{where}: identity {_quoted(identity)} would match everyone; write a part of it"
            )
    roles = frozenset(_role(n, where) for n in _texts(entry, "roles", where))
    # Required: a grant without its last line must not cover more topics than with it.
    if "topics" not in entry:
        raise ValueError(
            f'{where}: has no topics; the file may be cut off; write topics = ["*"] for all topics'
        )
    topics = _texts(entry, "topics", where)
    for topic in topics:
        if not _LEGAL_TOPIC_PATTERN.fullmatch(topic):
            raise ValueError(f"{where}: {_quoted(topic)} is no pattern for a topic's name")
    groups = _texts(entry, "groups", where) if "groups" in entry else ()
    if groups and Role.READER not in roles:
        raise ValueError(f"{where}: has groups without the role {Role.READER}, which uses them")
    return Grant(identities, roles, topics, groups)


def _role(name: str, where: str) -> Role:
    try:
        return Role(name)
    except ValueError as e:
        known = ", ".join(Role)
        raise ValueError(f"{where}: unknown role {_quoted(name)}; the roles are {known}") from e


def _texts(entry: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    found = entry.get(key)
    if not isinstance(found, list) or not found or not all(isinstance(v, str) for v in found):
        raise ValueError(f"{where}: {key} must be a list of one or more texts")
    for text in found:
        if not 1 <= len(text) <= MAX_TEXT_LENGTH:
            raise ValueError(f"{where}: {key} has a text of {len(text):,} characters")
    return tuple(found)


def _quoted(text: str) -> str:
    """Return a text of the file for a message: short, and without control characters."""
    return repr(text[:80])
