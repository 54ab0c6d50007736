"""Decide what a person at the page may see: what RLMM, RLM and RSM would answer to them."""

from dataclasses import dataclass

from services.api.errors import PermissionDeniedError
from services.api.roles import RULES, Role
from services.rpc.server.policy import ALL_TOPICS, AllTopics, Policy

ANONYMOUS = "anonymous"

READING_ROLES = frozenset({Role.READER, Role.AUDITOR})
"""The roles that read and change nothing; no other role opens the page."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """The identity of a person, and the policy; without TLS there is no policy.

    The console calls the services with its own certificate. Without this check each person would
    see whatever the console may read.
    """

    identity: str = ANONYMOUS
    policy: Policy | None = None

    def may(self, rpc: str, topic: str | AllTopics | None = ALL_TOPICS) -> bool:
        """Return whether the person may make a call, SERVICE/RPC, for a topic by themselves."""
        if self.policy is None:
            return True
        roles = RULES[rpc].roles & READING_ROLES
        return self.policy.allows(self.identity, roles, topic)

    def require(self, rpc: str, topic: str | AllTopics | None = ALL_TOPICS) -> None:
        """Check that the person may make a call.

        Raises:
            PermissionDeniedError: they may not; the message names what is missing.
        """
        if not self.may(rpc, topic):
            roles = " or ".join(sorted(RULES[rpc].roles & READING_ROLES))
            raise PermissionDeniedError(
                f"{self.identity} may not see this: needs the role {roles} for "
                f"{'all topics' if topic in (None, ALL_TOPICS) else f'the topic {topic}'}; add a "
                "grant to the policy file"
            )

    def require_any(self) -> None:
        """Check that the person may see anything at all.

        Raises:
            PermissionDeniedError: no grant gives them a role that reads.
        """
        if self.policy is not None and not self.policy.allows(self.identity, READING_ROLES):
            raise PermissionDeniedError(
                f"{self.identity} may not use the console: needs the role reader or auditor; add a "
                "grant to the policy file"
            )
