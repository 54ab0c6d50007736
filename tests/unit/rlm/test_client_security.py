"""What kafka-python is told of a file of Kafka's client properties."""

import ssl
from pathlib import Path

import pytest

from services.rlm.kafka_admin.client import connect_admin
from services.rlm.kafka_admin.client_config import ClientConfigError, client_security
from tests.harness.certificates import Certificate, encrypted_key, issue, make_authority

SECRET = "hunter2"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
KEYS = "ssl.keystore.type=PEM\n"
TRUST = "ssl.truststore.type=PEM\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, authority: Certificate) -> Certificate:
    return issue(tmp_path_factory.mktemp("client"), "client", authority)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "client.properties"


def context_of(file: Path, text: str) -> ssl.SSLContext:
    file.write_text(f"security.protocol=SSL\n{text}")
    security = client_security(file)
    assert security.options["ssl_context"] == security.ssl_context
    assert security.ssl_context is not None
    return security.ssl_context


def refusal(file: Path, text: str) -> str:
    with pytest.raises(ClientConfigError) as refused:
        context_of(file, text)
    assert SECRET not in str(refused.value)
    return str(refused.value)


def trusted(context: ssl.SSLContext) -> list[object]:
    return [dict(found)["subject"] for found in context.get_ca_certs()]


def inline(pem: Path, blank: str) -> str:
    """A property's value over lines, each but the last with a backslash at its end."""
    return f"{blank}\\\n   ".join(pem.read_text().split("\n"))


def test_without_a_file_it_is_plaintext() -> None:
    security = client_security(None)
    assert (security.protocol.value, security.ssl_context, security.options) == (
        "PLAINTEXT",
        None,
        {},
    )


def test_who_logs_in_with_scram_is_named_as_rfc_5802_says(file: Path) -> None:
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f'sasl.jaas.config={SCRAM} required username="a=b,c" password="d=e,f";'
    )
    security = client_security(file)
    assert security.options == {
        "security_protocol": "SASL_PLAINTEXT",
        "ssl_context": None,
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "a=3Db=2Cc",
        "sasl_plain_password": "d=e,f",
    }
    assert "d=e,f" not in repr(security)


def test_the_systems_cas_are_trusted_where_none_is_named(
    file: Path, authority: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    context = context_of(file, "")
    assert ((("commonName", "authority"),),) in trusted(context)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_host_names_are_not_checked_where_the_file_says_so(file: Path) -> None:
    context = context_of(file, "ssl.endpoint.identification.algorithm=\n")
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)


def test_whatever_lies_in_a_truststore_is_trusted_be_it_not_the_root(file: Path) -> None:
    context = context_of(file, "security.protocol=SSL")
    assert context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN


@pytest.mark.parametrize("blank", [" ", ""])
def test_a_truststore_is_a_file_or_stands_in_the_properties(
    file: Path, authority: Certificate, blank: str
) -> None:
    of_file = context_of(file, f"{TRUST}ssl.truststore.location={authority.certificate}")
    twice = f"{inline(authority.certificate, blank)}{inline(authority.certificate, blank)}"
    of_text = context_of(file, f"{TRUST}ssl.truststore.certificates={twice}")
    expected = [((("commonName", "authority"),),)]
    assert (trusted(of_file), trusted(of_text)) == (expected, expected)


@pytest.mark.parametrize("blank", [" ", ""])
def test_a_keystore_is_a_file_or_stands_in_the_properties(
    file: Path, client: Certificate, blank: str
) -> None:
    context_of(file, f"{KEYS}ssl.keystore.location={client.keystore}")
    key, chain = inline(client.key, blank), inline(client.certificate, blank)
    context_of(file, f"{KEYS}ssl.keystore.key={key}\nssl.keystore.certificate.chain={chain}")


def test_a_key_may_have_a_password(file: Path, client: Certificate) -> None:
    key = inline(encrypted_key(client.key, SECRET), " ")
    chain = inline(client.certificate, " ")
    keys = f"{KEYS}ssl.keystore.key={key}\nssl.keystore.certificate.chain={chain}\n"
    context_of(file, f"{keys}ssl.key.password={SECRET}")
    for wrong in ("", "ssl.key.password=another", f"ssl.key.password={'x' * 2000}"):
        assert refusal(file, f"{keys}{wrong}").startswith(f"{file}: ssl.keystore.key: ")


def test_what_is_no_pem_is_told_with_the_file_that_it_is_not(
    file: Path, tmp_path: Path, authority: Certificate, client: Certificate
) -> None:
    nonsense, nowhere = tmp_path / "nonsense.pem", tmp_path / "nowhere.pem"
    nonsense.write_text(SECRET)
    key, chain = inline(client.key, " "), inline(authority.certificate, " ")
    for text, wrong in [
        (
            f"{TRUST}ssl.truststore.location={nonsense}",
            f"ssl.truststore.location: {nonsense}: no certificates in PEM",
        ),
        (
            f"{TRUST}ssl.truststore.location={nowhere}",
            f"ssl.truststore.location: {nowhere}: cannot be read: No such file or directory",
        ),
        (
            f"{TRUST}ssl.truststore.certificates={SECRET}",
            "ssl.truststore.certificates: no certificates in PEM",
        ),
        (
            f"{KEYS}ssl.keystore.location={nonsense}",
            f"ssl.keystore.location: {nonsense}: no private key with its certificates in PEM",
        ),
        (
            f"{KEYS}ssl.keystore.location={nowhere}",
            f"ssl.keystore.location: {nowhere}: cannot be read: No such file or directory",
        ),
        (
            f"{KEYS}ssl.keystore.key={key}\nssl.keystore.certificate.chain={chain}",
            "ssl.keystore.key: no private key with its certificates in PEM",
        ),
    ]:
        assert refusal(file, text).startswith(f"{file}: {wrong}")


def test_a_wrong_file_is_an_error_before_anybody_is_asked(file: Path) -> None:
    file.write_text("security.protocol=TLS")
    with pytest.raises(ClientConfigError, match=rf"^{file}: security.protocol: must be one of"):
        connect_admin(["nowhere.invalid:9092"], file)
    file.write_text("security.protocol=SSL")
    connect_admin(["nowhere.invalid:9092"], file)
