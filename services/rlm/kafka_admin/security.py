"""Convert RLM's settings of TLS and SASL into options of kafka-python."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from services.common.bounded_file import (
    MAX_PEM_BYTES,
    SecretFileError,
    read_bounded,
    read_secret,
    shown,
)


class KafkaSecurityError(Exception):
    """The error if the file of a setting cannot be used; the message names both and no secret."""


class SecurityProtocol(Enum):
    """The protocol of a broker's listener."""

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


class SaslMechanism(Enum):
    """The mechanism by which RLM logs in."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The options of one connection.

    Attributes:
        ssl_context: None without TLS.
        options: KafkaConnection's.
        token: with OAUTHBEARER.
    """

    ssl_context: ssl.SSLContext | None
    options: Mapping[str, Any] = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """The files and names that RLM uses to connect to brokers.

    The fields are those of RlmSettings without `kafka_`.

    Raises:
        ValueError: if a setting is missing, or has no use with this protocol.
    """

    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    sasl_mechanism: SaslMechanism | None = None
    username: str | None = None
    password_file: Path | None = None
    ssl_ca_file: Path | None = None
    ssl_certificate_file: Path | None = None
    ssl_key_file: Path | None = None
    ssl_key_password_file: Path | None = None

    def __post_init__(self) -> None:
        protocol = self.security_protocol
        has_token = self.sasl_mechanism is SaslMechanism.OAUTHBEARER
        names_user = () if has_token else ("username",)
        sasl = ("sasl_mechanism", *names_user, "password_file")
        tls = ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file", "ssl_key_password_file")
        missing = [name for name in sasl if protocol.has_sasl and getattr(self, name) is None]
        if missing:
            raise ValueError(
                f"RLM_KAFKA_SECURITY_PROTOCOL={protocol.value} needs {_names(missing)}"
            )
        unused = [*(() if protocol.has_sasl else sasl), *(() if protocol.has_tls else tls)]
        useless = [name for name in unused if getattr(self, name) is not None]
        if has_token and self.username is not None:
            raise ValueError("RLM_KAFKA_USERNAME: not used with OAUTHBEARER; remove it")
        if useless:
            raise ValueError(
                f"{_names(useless)}: not used with RLM_KAFKA_SECURITY_PROTOCOL={protocol.value}; "
                "set the protocol of the brokers' listener, or remove it"
            )
        of_key = [name for name in tls[2:] if getattr(self, name) is not None]
        if of_key and self.ssl_certificate_file is None:
            raise ValueError(f"{_names(of_key)} needs RLM_KAFKA_SSL_CERTIFICATE_FILE")

    def connection_options(self) -> ConnectionOptions:
        """Read the files, so that the next connection uses a new password or certificate.

        Raises:
            KafkaSecurityError: if a file cannot be used.
        """
        context = self.ssl_context()
        options = {"security_protocol": self.security_protocol.value, "ssl_context": context}
        if not self.security_protocol.has_sasl:
            return ConnectionOptions(context, options)
        assert self.sasl_mechanism is not None
        assert self.password_file is not None
        secret = _secret(self.password_file, "password_file")
        options["sasl_mechanism"] = self.sasl_mechanism.value
        if self.sasl_mechanism is SaslMechanism.OAUTHBEARER:
            return ConnectionOptions(context, options, secret)
        return ConnectionOptions(context, options | self._user_options(secret))

    def _user_options(self, password: str) -> dict[str, Any]:
        assert self.username is not None
        username = self.username
        if self.sasl_mechanism is not SaslMechanism.PLAIN:
            # RFC 5802; the library does not escape.
            username = username.replace("=", "=3D").replace(",", "=2C")
        return {"sasl_plain_username": username, "sasl_plain_password": password}

    def ssl_context(self) -> ssl.SSLContext | None:
        """Read the files of TLS; None without TLS. Raises as connection_options."""
        if not self.security_protocol.has_tls:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # As in Java, every certificate in the CA file is trusted, not only a root.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self.ssl_ca_file is None:
            context.load_default_certs()
        else:
            _check_readable(self.ssl_ca_file, "ssl_ca_file")
            try:
                context.load_verify_locations(self.ssl_ca_file)
            except ssl.SSLError as e:
                raise _unusable("ssl_ca_file", self.ssl_ca_file, "no certificates in PEM") from e
        if self.ssl_certificate_file is not None:
            self._load_certificate(context, self.ssl_certificate_file)
        return context

    def _load_certificate(self, context: ssl.SSLContext, certificate_file: Path) -> None:
        password = ""  # With None OpenSSL would ask for it at the terminal.
        if self.ssl_key_password_file is not None:
            password = _secret(self.ssl_key_password_file, "ssl_key_password_file")
        key_file = self.ssl_key_file or certificate_file
        for name, path in (("ssl_certificate_file", certificate_file), ("ssl_key_file", key_file)):
            _check_readable(path, name)
        try:
            context.load_cert_chain(certificate_file, key_file, password=password)
        except (ssl.SSLError, ValueError) as e:
            raise _unusable(
                "ssl_certificate_file",
                certificate_file,
                f"no certificate in PEM whose private key is in {key_file}, or the key needs "
                f"another RLM_KAFKA_SSL_KEY_PASSWORD_FILE: {e}",
            ) from e


def _secret(path: Path, name: str) -> str:
    """Read a secret without the newline at its end."""
    try:
        return read_secret(path)
    except SecretFileError as e:
        raise KafkaSecurityError(f"{_names([name])}: {e}") from None


def _check_readable(path: Path, name: str) -> None:
    """Raise if a file cannot be read or is too large; OpenSSL names no file and knows no limit."""
    try:
        read_bounded(path, MAX_PEM_BYTES)
    except OSError as e:
        raise _unusable(name, path, f"cannot be read: {e.strerror}") from e


def _unusable(name: str, path: Path, reason: str) -> KafkaSecurityError:
    return KafkaSecurityError(f"{_names([name])}: {shown(path)}: {reason}")


def _names(fields: list[str]) -> str:
    return ", ".join(f"RLM_KAFKA_{name.upper()}" for name in fields)
