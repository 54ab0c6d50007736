"""How brokers are spoken to, as kafka-python is told it."""

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.rlm.kafka_admin.client_config import (
    ClientConfigError,
    Pem,
    PemFile,
    SaslLogin,
    SecurityProtocol,
    Tls,
    read_client_config,
)

_PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----([^-]*)-----END \1-----")
_BASE64_LINE = re.compile(r".{1,64}")


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """
    Attributes:
        ssl_context: where the protocol has TLS.
        options: KafkaNetClient's.
    """

    protocol: SecurityProtocol
    ssl_context: ssl.SSLContext | None
    options: Mapping[str, Any] = field(repr=False)


def client_security(config_file: Path | None) -> ClientSecurity:
    """As this file of Kafka's client properties says now, and the files that it names; None:
    PLAINTEXT.

    Raises:
        ClientConfigError
    """
    if config_file is None:
        return ClientSecurity(SecurityProtocol.PLAINTEXT, None, {})
    try:
        config = read_client_config(config_file)
        context = None if config.tls is None else _ssl_context(config.tls)
    except ClientConfigError as e:
        raise ClientConfigError(f"{config_file}: {e}") from e
    options = {"security_protocol": config.protocol.value, "ssl_context": context}
    if config.login is not None:
        options |= _sasl_options(config.login)
    return ClientSecurity(config.protocol, context, options)


def _sasl_options(login: SaslLogin) -> dict[str, str]:
    username = login.username
    if login.mechanism.startswith("SCRAM-"):
        # RFC 5802, which the library leaves to its caller.
        username = username.replace("=", "=3D").replace(",", "=2C")
    return {
        "sasl_mechanism": login.mechanism,
        "sasl_plain_username": username,
        "sasl_plain_password": login.password,
    }


def _ssl_context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = tls.checks_host_name
    # As in Java, whatever lies in a truststore is trusted, be it not the root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.truststore is None:
        context.load_default_certs()
    else:
        with _file_of(tls.truststore, "no certificates in PEM") as path:
            context.load_verify_locations(path)
    if tls.keystore is not None:
        wrong = "no private key with its certificates in PEM, or not of this ssl.key.password"
        with _file_of(tls.keystore, wrong) as path:
            # A password, be it none: without one OpenSSL would ask for it at the terminal.
            context.load_cert_chain(path, password=tls.key_password or "")
    return context


@contextmanager
def _file_of(pem: Pem, wrong: str) -> Iterator[Path]:
    """A file of it, which is all that OpenSSL reads keys from; what stands in the properties
    becomes one in memory, never on a disk.

    Raises:
        ClientConfigError: what is done with the file fails, which is told as `wrong`.
    """
    told = f"{pem.name}: {pem.path}" if isinstance(pem, PemFile) else pem.name
    try:
        if isinstance(pem, PemFile):
            yield pem.path
            return
        with open(os.memfd_create("sediment-pem"), "wb") as file:
            file.write(_as_lines(pem.text).encode())
            file.flush()
            yield Path(f"/proc/self/fd/{file.fileno()}")
    except ssl.SSLError as e:
        raise ClientConfigError(f"{told}: {wrong}: {e.reason}") from e
    except OSError as e:
        raise ClientConfigError(f"{told}: cannot be read: {e.strerror}") from e
    except ValueError as e:  # a password that OpenSSL has no room for
        raise ClientConfigError(f"{told}: {e}") from e


def _as_lines(text: str) -> str:
    """PEM as OpenSSL wants it: continued over lines of properties it has no ends of lines."""
    lines: list[str] = []
    for label, body in _PEM_BLOCK.findall(text):
        base64 = _BASE64_LINE.findall("".join(body.split()))
        lines += [f"-----BEGIN {label}-----", *base64, f"-----END {label}-----"]
    return "\n".join([*lines, ""])
