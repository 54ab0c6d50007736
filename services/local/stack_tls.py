"""Make the certificates and the policy of `sediment up --tls`."""

from pathlib import Path

from services.local.certificates import Certificate, CertificateAuthority
from services.local.data_directory import write_secret

TRUST_DOMAIN = "spiffe://sediment.local"
OPERATOR = f"{TRUST_DOMAIN}/operator"
RLM = f"{TRUST_DOMAIN}/rlm"
BROKER = f"{TRUST_DOMAIN}/broker"
_CLIENTS = ("operator", "broker")
_SERVICES = ("rsm", "rlmm", "rlm")

# The broker's identity is for a Kafka broker with the plugin, which you may start yourself.
_POLICY = f"""\
# Made by `sediment up --tls` at each start; docs/run/security.md describes the format.
[[grant]]
identities = ["{OPERATOR}"]
roles = ["shipper", "reader", "deleter", "sweeper", "auditor", "admin", "exporter", "keeper",
         "overrider"]
topics = ["*"]

[[grant]]
identities = ["{RLM}", "{BROKER}"]
roles = ["shipper", "reader", "deleter"]
topics = ["*"]
"""


class StackTls:
    """A throw-away authority, a certificate of it for each party, and the policy; all files new.

    Attributes:
        operator: the certificate with which commands of this user connect.
    """

    def __init__(self, directory: Path) -> None:
        """Write the files, which only this user can read."""
        authority = CertificateAuthority(directory)
        made = {
            name: authority.issue(name, uris=[f"{TRUST_DOMAIN}/{name}"])
            for name in (*_SERVICES, *_CLIENTS)
        }
        self._certificates = made
        self._policy = directory / "policy.toml"
        write_secret(self._policy, _POLICY)
        self.ca = authority.certificate
        self.operator = made["operator"]

    def settings(self, service: str) -> dict[str, str]:
        """Return the settings with which a service (rsm, rlmm or rlm) serves TLS."""
        prefix = service.upper()
        own: Certificate = self._certificates[service]
        return {
            f"{prefix}_TLS_CERTIFICATE_FILE": str(own.certificate),
            f"{prefix}_TLS_KEY_FILE": str(own.key),
            f"{prefix}_TLS_CLIENT_CA_FILE": str(self.ca),
            f"{prefix}_POLICY_FILE": str(self._policy),
        }
