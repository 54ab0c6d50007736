"""A file of Kafka's client properties: what is taken from it, and what is refused."""

from pathlib import Path

import pytest

from services.rlm.kafka_admin.client_config import (
    MAX_FILE_BYTES,
    ClientConfig,
    ClientConfigError,
    PemFile,
    PemText,
    SaslLogin,
    SecurityProtocol,
    Tls,
    read_client_config,
)

SECRET = "hunter2"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SASL = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
TLS = "security.protocol=SSL\n"
NOTHING_MORE = Tls(None, None, None, checks_host_name=True)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "client.properties"


def told(file: Path, text: str) -> ClientConfig:
    file.write_text(text, encoding="latin-1")
    return read_client_config(file)


def tls_of(file: Path, text: str) -> Tls:
    tls = told(file, TLS + text).tls
    assert tls is not None
    return tls


def refusal(file: Path, text: str) -> str:
    with pytest.raises(ClientConfigError) as refused:
        told(file, text)
    assert SECRET not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "security.protocol=PLAINTEXT",
        "security.protocol = plaintext ",
        "bootstrap.servers=a:1\nclient.id=x\nrequest.timeout.ms=5000\nretries=3",
    ],
)
def test_what_says_nothing_of_security_is_plaintext(file: Path, text: str) -> None:
    assert told(file, text) == ClientConfig(SecurityProtocol.PLAINTEXT, None, None)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("module", [PLAIN, SCRAM])
def test_a_login_is_of_the_mechanism_that_is_named(file: Path, mechanism: str, module: str) -> None:
    text = (
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={module} required username="rlm" password="{SECRET}";'
    )
    assert told(file, text) == ClientConfig(
        SecurityProtocol.SASL_PLAINTEXT, SaslLogin(mechanism, "rlm", SECRET), None
    )


def test_a_file_is_read_as_java_reads_properties(file: Path) -> None:
    text = (
        "# of RLM\n! too\n\nsecurity.protocol: SASL_SSL\nsasl.mechanism   SCRAM-SHA-512\n"
        f'sasl.jaas.config={SCRAM} \\\n    required \\\n    username="rlm" \\\n'
        '    password="a\\\\"b\\\\\\\\c\\u20ac\xe4";\n'
    )
    config = told(file, text)
    assert config.login == SaslLogin("SCRAM-SHA-512", "rlm", 'a"b\\c\u20ac\xe4')
    assert config.tls == NOTHING_MORE


def test_stores_are_files_of_pem(file: Path) -> None:
    text = (
        "ssl.truststore.type=PEM\nssl.truststore.location=/etc/ca.pem\nssl.keystore.type=PEM\n"
        f"ssl.keystore.location=/etc/rlm.pem\nssl.key.password={SECRET}\n"
        "ssl.endpoint.identification.algorithm=\n"
    )
    assert tls_of(file, text) == Tls(
        PemFile("ssl.truststore.location", Path("/etc/ca.pem")),
        PemFile("ssl.keystore.location", Path("/etc/rlm.pem")),
        SECRET,
        checks_host_name=False,
    )


def test_stores_may_stand_in_the_file_itself(file: Path) -> None:
    text = (
        "ssl.truststore.type=PEM\nssl.truststore.certificates=-----BEGIN \\\n  C\n"
        "ssl.keystore.type=PEM\nssl.keystore.key=K\nssl.keystore.certificate.chain=CC\n"
    )
    assert tls_of(file, text) == Tls(
        PemText("ssl.truststore.certificates", "-----BEGIN C"),
        PemText("ssl.keystore.key", "K\nCC"),
        None,
        checks_host_name=True,
    )


@pytest.mark.parametrize("text", ["", "ssl.endpoint.identification.algorithm=HTTPS"])
def test_without_stores_the_systems_cas_are_trusted_for_their_host_names(
    file: Path, text: str
) -> None:
    assert tls_of(file, text) == NOTHING_MORE


PEM_KEYS = "ssl.keystore.type=PEM\n"
PEM_TRUST = "ssl.truststore.type=PEM\n"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("security.protocol=TLS", "security.protocol: must be one of PLAINTEXT, SSL, SASL_PLAIN"),
        (
            f"{TLS}ssl.truststore.location=/a.jks\nssl.truststore.password={SECRET}",
            "ssl.truststore.type: only PEM is understood, and JKS is the default; convert",
        ),
        (f"{TLS}ssl.truststore.type=JKS", "ssl.truststore.type: only PEM is understood"),
        (f"{TLS}ssl.truststore.certificates={SECRET}", "ssl.truststore.type: only PEM"),
        (
            f"{TLS}ssl.keystore.type=PKCS12\nssl.keystore.location=/a",
            "ssl.keystore.type: only PEM is understood",
        ),
        (
            f"{TLS}{PEM_TRUST}ssl.truststore.password={SECRET}",
            "ssl.truststore.password: not understood here; remove it",
        ),
        (
            f"{TLS}ssl.protocol=TLSv1.3\nssl.enabled.protocols=TLSv1.3",
            "ssl.enabled.protocols, ssl.protocol: not understood here; remove it",
        ),
        (
            f"{SASL}sasl.client.callback.handler.class={SECRET}",
            "sasl.client.callback.handler.class: not understood here",
        ),
        ("security.providers=a.B", "security.providers: not understood here"),
        ("config.providers=file", "config.providers: not understood here"),
        ("config.providers.file.class=a.B", "config.providers.file.class: not understood here"),
        (
            f"sasl.mechanism=PLAIN\nsasl.jaas.config={SECRET}",
            "sasl.jaas.config, sasl.mechanism: of no use with security.protocol=PLAINTEXT",
        ),
        (f"{SASL}{PEM_TRUST}", "ssl.truststore.type: of no use with security.protocol=SASL_PLAIN"),
        (f"{TLS}sasl.mechanism=PLAIN", "sasl.mechanism: of no use with security.protocol=SSL"),
        (
            "security.protocol=SASL_SSL",
            "sasl.mechanism: must be one of PLAIN, SCRAM-SHA-256, "
            "SCRAM-SHA-512; GSSAPI, the default, is not understood",
        ),
        (f"{SASL}sasl.mechanism=OAUTHBEARER", "sasl.mechanism: must be one of PLAIN"),
        (SASL, "sasl.jaas.config: at its end: a login module's class is expected; it reads: org"),
        (
            f"{SASL}sasl.jaas.config={PLAIN} required password={SECRET}",
            "sasl.jaas.config: at its end: an option's name",
        ),
        (
            f"{SASL}sasl.jaas.config=a.{SECRET} required username=a password=b;",
            f"sasl.jaas.config: the module must be {PLAIN} or {SCRAM}",
        ),
        (
            f"{SASL}sasl.jaas.config={PLAIN} required password={SECRET};",
            "sasl.jaas.config: a username, a password and no other option are needed",
        ),
        (
            f'{SASL}sasl.jaas.config={PLAIN} required username="" password={SECRET};',
            "sasl.jaas.config: a username, a password",
        ),
        (
            f"{SASL}sasl.jaas.config={SCRAM} required username=a password={SECRET} tokenauth=true;",
            "sasl.jaas.config: a username, a password",
        ),
        (
            f"{TLS}ssl.endpoint.identification.algorithm=none",
            "ssl.endpoint.identification.algorithm: must be https, or empty",
        ),
        (f"{TLS}ssl.key.password={SECRET}", "ssl.key.password: there is no key"),
        (
            f"{TLS}{PEM_KEYS}ssl.keystore.key={SECRET}",
            "ssl.keystore.key and ssl.keystore.certificate.chain: give both",
        ),
        (
            f"{TLS}{PEM_KEYS}ssl.keystore.location=/a\nssl.keystore.certificate.chain=C",
            "ssl.keystore.key and ssl.keystore.certificate.chain: give both",
        ),
        (
            f"{TLS}{PEM_KEYS}ssl.keystore.location=/a\nssl.keystore.key={SECRET}\n"
            "ssl.keystore.certificate.chain=C",
            "ssl.keystore.location and ssl.keystore.key: give one of them",
        ),
        (
            f"{TLS}{PEM_TRUST}ssl.truststore.location=/a\nssl.truststore.certificates=C",
            "ssl.truststore.location and ssl.truststore.certificates: give one of them",
        ),
        (f"sasl.jaas.config=\\u12{SECRET}", r"has a \u without four hexadecimal digits"),
        ("a" * (MAX_FILE_BYTES + 1), f"over {MAX_FILE_BYTES} bytes"),
    ],
)
def test_what_is_wrong_is_told_by_its_property_and_no_secret_with_it(
    file: Path, text: str, wrong: str
) -> None:
    assert refusal(file, text).startswith(wrong)


def test_a_file_that_cannot_be_read_is_told_why(tmp_path: Path) -> None:
    with pytest.raises(ClientConfigError, match="cannot be read: No such file or directory"):
        read_client_config(tmp_path / "nowhere")
    with pytest.raises(ClientConfigError, match="cannot be read: Is a directory"):
        read_client_config(tmp_path)


def test_no_secret_is_in_a_representation(file: Path) -> None:
    text = (
        f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f"sasl.jaas.config={PLAIN} required username=rlm password={SECRET};\n"
        f"{PEM_KEYS}ssl.keystore.key={SECRET}\nssl.keystore.certificate.chain=C\n"
        f"ssl.key.password={SECRET}\n"
    )
    config = told(file, text)
    assert config.login == SaslLogin("PLAIN", "rlm", SECRET)
    assert SECRET not in repr(config)
