"""Read a file of Kafka's client properties, and turn it into kafka-python's settings."""

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

_CONTROL_FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})

_TOKEN = re.compile(
    r"""
    (?P<skipped> [\x00-\x20]+ | //[^\r\n]* | /\*.*?\*/ )
    | (?P<quoted> "(?:[^"\\\r\n]|\\[^\r\n])*" | '(?:[^'\\\r\n]|\\[^\r\n])*' )
    | (?P<word> [A-Za-z_$\xa0-\U0010ffff][-A-Za-z0-9_.$\xa0-\U0010ffff]* )
    | (?P<mark> [=;] )
    """,
    re.VERBOSE | re.DOTALL,
)

_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)")
_NAMED_ESCAPES = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """One login module, and what it is told; of a repeated option the last counts."""

    login_module: str
    options: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str = field(repr=False)
    at: int


def parse_jaas(text: str) -> JaasEntry:
    """
    Raises:
        ValueError: it is not one entry; tells at which character, and repeats none of it.
    """
    tokens = _tokens(text)
    module = next(tokens)
    if module.kind != "word":
        raise _wrong(module, "a login module's class is expected")
    flag = next(tokens)
    if flag.text.lower() not in _CONTROL_FLAGS:
        raise _wrong(flag, "`required` is expected")
    options = {}
    while (name := next(tokens)).text != ";" or name.kind != "mark":
        if name.kind != "word":
            raise _wrong(name, "an option's name, or a `;` at the end, is expected")
        if (sign := next(tokens)).text != "=" or sign.kind != "mark":
            raise _wrong(sign, "a `=` is expected; a value with blanks needs quotes")
        value = next(tokens)
        if value.kind not in ("word", "quoted"):
            raise _wrong(value, "a value is expected; put it in quotes")
        options[name.text] = value.text
    if (more := next(tokens)).kind != "end":
        raise _wrong(more, "more than one login module")
    return JaasEntry(module.text, options)


def _tokens(text: str) -> Iterator[_Token]:
    """The last is of the kind "end"."""
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(
                f"at character {at + 1}: neither a word nor quoted; a value that does not begin "
                "with a letter, or has other signs than -_.$, needs quotes, and quotes an end"
            )
        kind = str(match.lastgroup)
        if kind == "quoted":
            yield _Token(kind, _ESCAPE.sub(_unescaped, match[0][1:-1]), at)
        elif kind != "skipped":
            yield _Token(kind, match[0], at)
        at = match.end()
    yield _Token("end", "", at)


def _unescaped(match: re.Match[str]) -> str:
    escaped = match[1]
    if escaped[0] in "01234567":
        return chr(int(escaped, 8))
    return _NAMED_ESCAPES.get(escaped, escaped)


def _wrong(token: _Token, what: str) -> ValueError:
    where = "at its end" if token.kind == "end" else f"at character {token.at + 1}"
    return ValueError(f"{where}: {what}")


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
