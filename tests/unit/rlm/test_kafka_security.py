"""Test RLM's settings of TLS and SASL as kafka-python's options."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from services.local.certificates import Certificate, CertificateAuthority
from services.rlm.kafka_admin.security import (
    KafkaSecurity,
    KafkaSecurityError,
    SaslMechanism,
    SecurityProtocol,
)
from tests.harness.certificates import encrypted_key, keystore

SECRET = "hunter2"
SASL, TLS = SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SSL


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def client(authority: CertificateAuthority) -> Certificate:
    return authority.issue("client")


def context_of(**files: Path) -> ssl.SSLContext:
    made = KafkaSecurity(TLS, **files).connection_options()  # type: ignore[arg-type]
    assert made.options == {"security_protocol": "SSL", "ssl_context": made.ssl_context}
    assert made.ssl_context is not None
    return made.ssl_context


def refusal(**files: Path) -> str:
    with pytest.raises(KafkaSecurityError) as refused:
        context_of(**files)
    assert SECRET not in str(refused.value)
    return str(refused.value)


def trusted(context: ssl.SSLContext) -> list[object]:
    return [dict(found)["subject"] for found in context.get_ca_certs()]


def test_the_default_is_plaintext() -> None:
    made = KafkaSecurity().connection_options()
    assert made.ssl_context is None
    assert made.options == {"security_protocol": "PLAINTEXT", "ssl_context": None}


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [
        (SaslMechanism.PLAIN, "a=b,c"),
        (SaslMechanism.SCRAM_SHA_256, "a=3Db=2Cc"),
        (SaslMechanism.SCRAM_SHA_512, "a=3Db=2Cc"),
    ],
)
def test_a_login_has_the_user_as_its_mechanism_escapes_it(
    tmp_path: Path, mechanism: SaslMechanism, name: str
) -> None:
    file = tmp_path / "password"
    file.write_text(" d=e,f \n")
    security = KafkaSecurity(SASL, mechanism, "a=b,c", file)
    made = security.connection_options()
    assert made.options == {
        "security_protocol": "SASL_PLAINTEXT",
        "ssl_context": None,
        "sasl_mechanism": mechanism.value,
        "sasl_plain_username": name,
        "sasl_plain_password": " d=e,f ",
    }
    assert "d=e,f" not in repr(made)
    file.write_text("changed")
    assert security.connection_options().options["sasl_plain_password"] == "changed"


def test_a_password_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    security = KafkaSecurity(SASL, SaslMechanism.PLAIN, "rlm", tmp_path / "nowhere")
    with pytest.raises(KafkaSecurityError) as refused:
        security.connection_options()
    assert str(refused.value) == (
        f"RLM_KAFKA_PASSWORD_FILE: {tmp_path}/nowhere: cannot be read: No such file or directory"
    )
    (tmp_path / "nowhere").write_bytes(b"\xff")
    with pytest.raises(KafkaSecurityError, match="is not UTF-8"):
        security.connection_options()


FILE = Path("/etc/file")


@pytest.mark.parametrize(
    ("protocol", "given", "message"),
    [
        (
            SecurityProtocol.SASL_SSL,
            {"username": "rlm"},
            "RLM_KAFKA_SECURITY_PROTOCOL=SASL_SSL needs RLM_KAFKA_SASL_MECHANISM, "
            "RLM_KAFKA_PASSWORD_FILE",
        ),
        (
            TLS,
            {"username": "rlm", "password_file": FILE},
            "RLM_KAFKA_USERNAME, RLM_KAFKA_PASSWORD_FILE: not used with "
            "RLM_KAFKA_SECURITY_PROTOCOL=SSL;",
        ),
        (
            SecurityProtocol.PLAINTEXT,
            {"ssl_ca_file": FILE},
            "RLM_KAFKA_SSL_CA_FILE: not used with RLM_KAFKA_SECURITY_PROTOCOL=PLAINTEXT;",
        ),
        (TLS, {"ssl_key_file": FILE}, "RLM_KAFKA_SSL_KEY_FILE needs RLM_KAFKA_SSL_CERTIFICATE"),
        (
            TLS,
            {"ssl_key_password_file": FILE},
            "RLM_KAFKA_SSL_KEY_PASSWORD_FILE needs RLM_KAFKA_SSL_CERTIFICATE",
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_named(
    protocol: SecurityProtocol, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=r"^RLM_KAFKA_") as refused:
        KafkaSecurity(protocol, **given)
    assert str(refused.value).startswith(message)


def test_the_systems_cas_are_trusted_by_default(
    authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    context = context_of()
    assert ((("commonName", "authority"),),) in trusted(context)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_only_the_given_cas_are_trusted_be_they_roots_or_not(
    authority: CertificateAuthority,
) -> None:
    context = context_of(ssl_ca_file=authority.certificate)
    assert trusted(context) == [((("commonName", "authority"),),)]
    assert context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN


def test_key_and_certificate_are_in_one_file_or_in_two(client: Certificate) -> None:
    context_of(ssl_certificate_file=keystore(client))
    context_of(ssl_certificate_file=client.certificate, ssl_key_file=client.key)


def test_a_key_may_have_a_password(tmp_path: Path, client: Certificate) -> None:
    key, password = encrypted_key(client.key, SECRET), tmp_path / "password"
    files = {"ssl_certificate_file": client.certificate, "ssl_key_file": key}
    password.write_text(f"{SECRET}\n")
    context_of(**files, ssl_key_password_file=password)
    for wrong in ("", "another", "x" * 2000):
        password.write_text(wrong)
        assert "RLM_KAFKA_SSL_KEY_PASSWORD_FILE" in refusal(**files, ssl_key_password_file=password)
    assert refusal(**files).startswith("RLM_KAFKA_SSL_CERTIFICATE_FILE: ")


def test_a_file_that_is_no_pem_is_named(tmp_path: Path, client: Certificate) -> None:
    nonsense, nowhere = tmp_path / "nonsense.pem", tmp_path / "nowhere.pem"
    nonsense.write_text(SECRET)
    missing = f"{nowhere}: cannot be read: No such file or directory"
    files = {"ssl_certificate_file": client.certificate}
    assert refusal(ssl_ca_file=nonsense) == (
        f"RLM_KAFKA_SSL_CA_FILE: {nonsense}: no certificates in PEM"
    )
    assert refusal(ssl_ca_file=nowhere) == f"RLM_KAFKA_SSL_CA_FILE: {missing}"
    assert refusal(ssl_certificate_file=nowhere) == f"RLM_KAFKA_SSL_CERTIFICATE_FILE: {missing}"
    assert refusal(**files, ssl_key_file=nowhere) == f"RLM_KAFKA_SSL_KEY_FILE: {missing}"
    for wrong in ({"ssl_certificate_file": nonsense}, files, {**files, "ssl_key_file": nonsense}):
        assert refusal(**wrong).startswith("RLM_KAFKA_SSL_CERTIFICATE_FILE: ")


def test_a_login_by_token_reads_it_from_its_file_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    security = KafkaSecurity(SASL, SaslMechanism.OAUTHBEARER, password_file=file)
    made = security.connection_options()
    assert (made.token, made.options["sasl_mechanism"]) == ("first", "OAUTHBEARER")
    assert "first" not in repr(made)
    file.write_text("second")
    assert security.connection_options().token == "second"


@pytest.mark.parametrize(
    ("username", "with_file", "reason"),
    [("rlm", True, "USERNAME: not used with OAUTHBEARER"), (None, False, "needs RLM_KAFKA_PASS")],
)
def test_a_login_by_token_has_a_file_and_no_user(
    tmp_path: Path, username: str | None, with_file: bool, reason: str
) -> None:
    file = tmp_path / "token" if with_file else None
    with pytest.raises(ValueError, match=reason):
        KafkaSecurity(SASL, SaslMechanism.OAUTHBEARER, username, file)
