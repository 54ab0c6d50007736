"""Connect to the broker beside this RLM: the one whose log directories it reads."""

import socket

from services.common.addresses import is_loopback
from services.rlm.kafka_admin.client import CONNECT_TIMEOUT_S, KafkaAdmin, open_socket
from services.rlm.kafka_admin.cluster_view import ClusterUnreachableError
from services.rlm.kafka_admin.security import KafkaSecurity, KafkaSecurityError


class BrokerBeside:
    """Open connections to one broker, at the listener of the bootstrap servers. Thread-safe.

    Args:
        admin: knows where the broker is.
        may_send_plaintext: passwords of consumers may leave this machine without TLS.

    Attributes:
        needs_login: that listener speaks SASL.
    """

    def __init__(
        self,
        admin: KafkaAdmin,
        broker_id: int,
        security: KafkaSecurity,
        *,
        may_send_plaintext: bool,
    ) -> None:
        self._admin = admin
        self._broker_id = broker_id
        self._security = security
        self._may_send_plaintext = may_send_plaintext
        self._address: str | None = None
        self.needs_login = security.security_protocol.has_sasl

    def open(self) -> socket.socket:
        """Connect, and return a socket that does not block.

        Raises:
            OSError: the broker cannot be reached; names the broker and the reason.
        """
        address = self._address
        try:
            if address is None:
                address = self._admin.address_of(self._broker_id)
            self._check(address)
            opened = open_socket(address, CONNECT_TIMEOUT_S, self._security.ssl_context())
        except (OSError, ClusterUnreachableError, KafkaSecurityError) as e:
            self._address = None  # It may be elsewhere when it is back.
            raise ConnectionError(f"broker {self._broker_id} at {address or '?'}: {e}") from e
        self._address = address
        return opened

    def _check(self, address: str) -> None:
        is_safe = self._security.security_protocol.has_tls or self._may_send_plaintext
        if self.needs_login and not is_safe and not is_loopback(address):
            raise ConnectionError(
                "passwords of consumers would leave this machine in plaintext; set "
                "RLM_KAFKA_SECURITY_PROTOCOL=SASL_SSL"
            )
