"""Check each call, each request and each running stream against the policy."""

from typing import Any

import grpc
from prometheus_client import Counter

from services.api.errors import PermissionDeniedError, UnauthenticatedError
from services.api.roles import PACKAGE, Roles, Rule, Topics, rule_of
from services.api.watches import MAX_WATCHED
from services.common.reloaded_file import FileError, ReloadedFile
from services.common.settings import ServiceSettings
from services.rpc.server.identity import Caller, TokenVerifier, caller_of
from services.rpc.server.policy import ALL_TOPICS, AllTopics, Policy, policy_file
from services.rpc.server.request_scope import roles_of, topics_of

DENIED_CALLS = Counter(
    "sediment_denied_calls",
    "Calls that were refused or ended because of their identity, by method and reason: "
    "unauthenticated, role, topic, share (too many calls of one identity at once), "
    "policy_change or token_expired (both ended while they ran).",
    ["method", "reason"],
)
# The role alone, and as many topics as a watch may name, which lasts longer than the policy. Import
# alone may name more, with each message, which is checked then.
_MOST_REMEMBERED = 1 + MAX_WATCHED
_NOBODY = Rule(frozenset(), Topics.NONE)


class Permit:
    """What the policy allowed one call.

    Attributes:
        identity: the caller.
        expires_at_s: as of Caller.
        method: the method, as gRPC names it.
    """

    __slots__ = (
        "_checked",
        "_policy",
        "_required",
        "_roles_of_stored",
        "_rule",
        "expires_at_s",
        "identity",
        "method",
    )

    def __init__(
        self,
        caller: Caller,
        method: str,
        policy: ReloadedFile[Policy],
    ) -> None:
        """Check that the identity has a role for the method.

        Raises:
            PermissionDeniedError: it has none, for any topic.
        """
        self.identity = caller.identity
        self.expires_at_s = caller.expires_at_s
        self.method = method
        self._policy = policy
        self._checked = policy.current()
        self._rule = rule_of(method) or _NOBODY
        self._roles_of_stored = frozenset((self._rule.roles,))
        self._required: set[tuple[Roles, str | AllTopics | None]] = set()
        self._require(self._rule.roles, None)

    def check_request(self, request: Any) -> None:
        """Check the topics and values of a request.

        Raises:
            PermissionDeniedError: the grants of the identity do not cover them.
        """
        topics: frozenset[str] | AllTopics | None = None
        self._roles_of_stored = roles_of(self._rule, request)
        for roles in self._roles_of_stored:
            if self._rule.topics is Topics.NONE or self._rule.topics is Topics.STORED:
                self._require(roles, None)
            elif not self._may(roles, ALL_TOPICS):
                topics = topics_of(self._rule, request) if topics is None else topics
                for topic in (topics,) if isinstance(topics, str) else topics or (None,):
                    self._require(roles, topic)

    def require_topic(self, topic: str) -> None:
        """Check a topic that the service found by an id; the refusal does not reveal its name.

        Raises:
            PermissionDeniedError: the grants of the identity do not cover it.
        """
        for roles in self._roles_of_stored:
            if not self._may(roles, topic):
                raise self._refusal(roles, "topic", " on the topic of this id")

    def is_valid(self) -> bool:
        """Return whether the present policy allows all that the call has required."""
        policy = self._policy.current()
        if policy is not self._checked:
            if not all(policy.allows(self.identity, *each) for each in self._required.copy()):
                return False
            self._checked = policy
        return True

    def _may(self, roles: Roles, topic: str | AllTopics | None) -> bool:
        while True:
            policy = self._policy.current()
            if not policy.allows(self.identity, roles, topic):
                return False
            if len(self._required) < _MOST_REMEMBERED:
                self._required.add((roles, topic))
            # If the policy changed meanwhile, `is_valid` may have missed what was added just now.
            if self._policy.current() is policy:
                return True

    def _require(self, roles: Roles, topic: str | AllTopics | None) -> None:
        if self._may(roles, topic):
            return
        if topic is None:
            raise self._refusal(roles, "role", "")
        where = "all topics" if topic == ALL_TOPICS else f"topic {topic[:249]!r}"
        raise self._refusal(roles, "topic", f" on {where}")

    def _refusal(self, roles: Roles, reason: str, where: str) -> PermissionDeniedError:
        DENIED_CALLS.labels(self.method, reason).inc()
        rpc = self.method.removeprefix(f"/{PACKAGE}.")
        return PermissionDeniedError(
            f"{self.identity} may not call {rpc}{where}: needs one of the roles "
            f"{', '.join(sorted(roles)) or '(none may)'}; add a grant to the policy file"
        )


class Access:
    """The identities and the policy of a server."""

    def __init__(self, policy: ReloadedFile[Policy], tokens: TokenVerifier | None = None) -> None:
        """Create the checks; without `tokens` only client certificates are identities."""
        self._policy = policy
        self._tokens = tokens

    def caller_of(self, method: str, context: grpc.ServicerContext) -> Caller:
        """Return the caller.

        Raises:
            UnauthenticatedError: the call has no valid identity.
        """
        try:
            return caller_of(context, self._tokens)
        except UnauthenticatedError:
            DENIED_CALLS.labels(method, "unauthenticated").inc()
            raise

    def permit(self, caller: Caller, method: str) -> Permit:
        """Allow a call; raises as Permit."""
        return Permit(caller, method, self._policy)


def open_access(settings: ServiceSettings) -> Access | None:
    """Return the access that the settings ask for; None with plaintext, which serves everyone.

    Raises:
        SystemExit: the policy or the keys of tokens cannot be used.
    """
    if not settings.has_tls:
        return None
    if settings.policy_file is None:
        raise SystemExit("cannot start: TLS without a policy file would let every client do all")
    try:
        tokens = None
        if settings.token_jwks_file is not None:
            tokens = TokenVerifier(
                settings.token_jwks_file, settings.token_issuer, settings.token_audience
            )
        return Access(policy_file(settings.policy_file), tokens)
    except FileError as e:
        raise SystemExit(f"cannot start: {e}") from e
