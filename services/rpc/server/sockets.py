"""Give a listener that is not gRPC the transport and the policy of the service, and descriptors."""

import resource
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from services.api.errors import UnauthenticatedError
from services.api.roles import PACKAGE, rule_of
from services.common.settings import ServiceSettings
from services.rpc.server.access import DENIED_CALLS
from services.rpc.server.identity import identity_of_certificate
from services.rpc.server.policy import policy_file
from services.rpc.server.transport import ServerContexts, open_tls


def raise_descriptor_limit() -> None:
    """Use as many descriptors as this machine allows: each connection takes one.

    The usual limit, 1,024, is for programs that call select(); these do not.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS allows fewer than it says.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def max_descriptors() -> int:
    """Return how many descriptors this process may have, at most a million."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1_000_000 if most == resource.RLIM_INFINITY else min(most, 1_000_000)


class SocketAccess:
    """The certificates and the policy of a service that has TLS.

    Args:
        service: in the contracts, whose RPCs the policy is about.
        needs_certificates: of clients; False if they identify themselves by other means.

    Attributes:
        context: returns the TLS context of a new connection.

    Raises:
        FileError: the policy file cannot be used.
        SystemExit: a TLS file cannot be used.
    """

    def __init__(
        self, settings: ServiceSettings, service: str, *, needs_certificates: bool = True
    ) -> None:
        assert settings.policy_file is not None  # held by the settings
        self._service = service
        self._policy = policy_file(settings.policy_file)
        client_ca = settings.tls_client_ca_file if needs_certificates else None
        self.context = ServerContexts(open_tls(settings, client_ca)).newest

    def identity_of(self, certificate: Mapping[str, Any]) -> str:
        """Return the identity of a verified certificate, as ssl.getpeercert has it.

        Raises:
            UnauthenticatedError: it has none.
        """
        try:
            return identity_of_certificate(certificate)
        except UnauthenticatedError:
            DENIED_CALLS.labels(f"/{PACKAGE}.{self._service}/", "unauthenticated").inc()
            raise

    def may_call(self, identity: str, rpc: str, topic: str | None) -> bool:
        """Return whether the policy lets an identity make a call for a topic, or for any at all."""
        method = f"/{PACKAGE}.{self._service}/{rpc}"
        rule = rule_of(method)
        if rule is not None and self._policy.current().allows(identity, rule.roles, topic):
            return True
        DENIED_CALLS.labels(method, "topic").inc()
        return False

    def may_use_group(self, identity: str, group: str) -> bool:
        """Return whether the policy lets an identity use a group of consumers."""
        return self._policy.current().allows_group(identity, group)
