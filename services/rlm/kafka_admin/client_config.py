"""A file of Kafka's client properties, as `kafka-topics.sh --command-config` takes it, and what it
says of how brokers are spoken to.

A property that names security is understood or refused, never ignored; all others are ignored.
Names and defaults are those of Kafka's CommonClientConfigs, SslConfigs and SaslConfigs; KIP-651 is
PEM's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from services.rlm.kafka_admin.jaas import parse_jaas

MAX_FILE_BYTES = 1024 * 1024
_SECURITY = ("security.", "ssl.", "sasl.", "config.providers")
"""What names of security begin with; a provider would put secrets into the values of others."""
_UNDERSTOOD = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_KAFKAS_MECHANISM = "GSSAPI"
_KAFKAS_STORE_TYPE = "JKS"
_LOGIN_MODULES = (
    "org.apache.kafka.common.security.plain.PlainLoginModule",
    "org.apache.kafka.common.security.scram.ScramLoginModule",
)


class ClientConfigError(Exception):
    """The file cannot be used. It tells the property and what to do, and repeats no value that may
    be secret."""


class SecurityProtocol(Enum):
    """What a listener speaks."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_sasl(self) -> bool:
        return self.name.startswith("SASL_")

    @property
    def has_tls(self) -> bool:
        return self.name.endswith("SSL")


@dataclass(frozen=True, slots=True)
class PemFile:
    """Attributes:
    name: the property that names the file.
    """

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class PemText:
    """PEM that stands in the file itself, its lines ended by any white space.

    Attributes:
        name: the property that it is the value of.
    """

    name: str
    text: str = field(repr=False)


Pem = PemFile | PemText


@dataclass(frozen=True, slots=True)
class SaslLogin:
    mechanism: str
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """
    Attributes:
        truststore: whom brokers' certificates must be of; None: the system's CAs.
        keystore: the private key and the certificates of who asks; None: it shows none.
    """

    truststore: Pem | None
    keystore: Pem | None
    key_password: str | None = field(repr=False)
    checks_host_name: bool


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """
    Attributes:
        login: where the protocol has SASL.
        tls: where it has TLS.
    """

    protocol: SecurityProtocol
    login: SaslLogin | None
    tls: Tls | None


def read_client_config(path: Path) -> ClientConfig:
    """
    Raises:
        ClientConfigError
    """
    return client_config(_properties(path))


def client_config(properties: Mapping[str, str]) -> ClientConfig:
    """What these properties say.

    Raises:
        ClientConfigError
    """
    given = {name: value.strip() for name, value in properties.items()}
    _refuse_other_stores(given)
    unknown = sorted(n for n in given if n.startswith(_SECURITY) and n not in _UNDERSTOOD)
    if unknown:
        raise ClientConfigError(
            f"{', '.join(unknown)}: not understood here; remove it, or ask brokers at a listener "
            f"that does without. Understood are {', '.join(sorted(_UNDERSTOOD))}"
        )
    protocol = _protocol(given)
    login = _login(given) if protocol.has_sasl else None
    tls = _tls(given) if protocol.has_tls else None
    return ClientConfig(protocol, login, tls)


def _properties(path: Path) -> dict[str, str]:
    # Of an extra, which only who polls has.
    from javaproperties import InvalidUEscapeError, loads  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as e:
        raise ClientConfigError(f"cannot be read: {e.strerror}") from e
    if len(data) > MAX_FILE_BYTES:
        raise ClientConfigError(f"over {MAX_FILE_BYTES} bytes; Kafka's client properties are meant")
    try:
        return dict(loads(data.decode("latin-1")))  # as Java's Properties.load
    except InvalidUEscapeError:
        raise ClientConfigError(
            r"has a \u without four hexadecimal digits behind it; a backslash is written \\"
        ) from None


def _refuse_other_stores(given: Mapping[str, str]) -> None:
    for store in ("ssl.truststore", "ssl.keystore"):
        kind = given.get(f"{store}.type", _KAFKAS_STORE_TYPE)
        if kind != "PEM" and any(name.startswith(f"{store}.") for name in given):
            raise ClientConfigError(
                f"{store}.type: only PEM is understood, and {_KAFKAS_STORE_TYPE} is the default; "
                "convert the store to PEM (keytool -importkeystore to PKCS12, then openssl "
                f"pkcs12), give that file as {store}.location, and set {store}.type=PEM"
            )


def _protocol(given: Mapping[str, str]) -> SecurityProtocol:
    told = given.get("security.protocol", SecurityProtocol.PLAINTEXT.value)
    try:
        protocol = SecurityProtocol(told.upper())
    except ValueError:
        known = ", ".join(p.value for p in SecurityProtocol)
        raise ClientConfigError(f"security.protocol: must be one of {known}") from None
    unused = sorted(
        name
        for name in given
        if (name.startswith("ssl.") and not protocol.has_tls)
        or (name.startswith("sasl.") and not protocol.has_sasl)
    )
    if unused:
        raise ClientConfigError(
            f"{', '.join(unused)}: of no use with security.protocol={protocol.value}, which is "
            "PLAINTEXT where nothing is said; set the protocol of the brokers' listener, or remove "
            "what is of no use"
        )
    return protocol


def _login(given: Mapping[str, str]) -> SaslLogin:
    mechanism = given.get("sasl.mechanism", _KAFKAS_MECHANISM)
    if mechanism not in _MECHANISMS:
        raise ClientConfigError(
            f"sasl.mechanism: must be one of {', '.join(_MECHANISMS)}; {_KAFKAS_MECHANISM}, the "
            "default, is not understood"
        )
    name = "sasl.jaas.config"
    try:
        entry = parse_jaas(given.get(name, ""))
    except ValueError as e:
        raise ClientConfigError(
            f'{name}: {e}; it reads: {_LOGIN_MODULES[0]} required username="..." password="...";'
        ) from None
    if entry.login_module not in _LOGIN_MODULES:
        raise ClientConfigError(f"{name}: the module must be {' or '.join(_LOGIN_MODULES)}")
    if set(entry.options) != {"username", "password"} or "" in entry.options.values():
        raise ClientConfigError(f"{name}: a username, a password and no other option are needed")
    return SaslLogin(mechanism, entry.options["username"], entry.options["password"])


def _tls(given: Mapping[str, str]) -> Tls:
    algorithm = given.get("ssl.endpoint.identification.algorithm", "https")
    if algorithm.lower() not in ("https", ""):
        raise ClientConfigError(
            "ssl.endpoint.identification.algorithm: must be https, or empty, with which the names "
            "of hosts are not checked"
        )
    keystore = _keystore(given)
    key_password = given.get("ssl.key.password")
    if key_password is not None and keystore is None:
        raise ClientConfigError("ssl.key.password: there is no key; give ssl.keystore.location")
    return Tls(
        truststore=_pem(given, "ssl.truststore.location", "ssl.truststore.certificates"),
        keystore=keystore,
        key_password=key_password,
        checks_host_name=algorithm != "",
    )


def _keystore(given: Mapping[str, str]) -> Pem | None:
    key, chain = "ssl.keystore.key", "ssl.keystore.certificate.chain"
    if bool(given.get(key)) != bool(given.get(chain)):
        raise ClientConfigError(f"{key} and {chain}: give both, or ssl.keystore.location")
    found = _pem(given, "ssl.keystore.location", key)
    return PemText(key, f"{found.text}\n{given[chain]}") if isinstance(found, PemText) else found


def _pem(given: Mapping[str, str], location: str, inline: str) -> Pem | None:
    path, text = given.get(location), given.get(inline)
    if path and text:
        raise ClientConfigError(f"{location} and {inline}: give one of them")
    if path:
        return PemFile(location, Path(path))
    return PemText(inline, text) if text else None
