"""The poller's client at a real broker's TLS and SASL listeners: answers, and refusals that name
their reason within seconds."""

import gc
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from demos.kafka_broker import KafkaBroker
from services.local.certificates import Certificate, CertificateAuthority
from services.rlm.kafka_admin.client import KafkaAdmin
from services.rlm.kafka_admin.cluster_view import ClusterUnreachableError, TopicView
from services.rlm.kafka_admin.security import KafkaSecurity, SaslMechanism, SecurityProtocol
from tests.harness.certificates import encrypted_key, keystore
from tests.harness.eventually import eventually
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import CLIENT_TIMEOUT_S, Cluster, Topic

pytestmark = pytest.mark.kafka

PLAINTEXT = KafkaSecurity()
SASL_PLAINTEXT = SecurityProtocol.SASL_PLAINTEXT
MECHANISMS = [SaslMechanism.PLAIN, SaslMechanism.SCRAM_SHA_512]
CHECK_CERTIFICATE = "RLM_KAFKA_SSL_CERTIFICATE_FILE if it requires client certificates"
SASL_AND_TLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
PASSWORD = 'hunter "2" \\ ='
SCRAM_USER = "rlm=a,b"
KEY_PASSWORD = "swordfish"
SOON_S = 20.0
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def quoted(text: str) -> str:
    """As a JAAS value that stands in a properties file."""
    jaas = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return jaas.replace("\\", "\\\\")


@dataclass(frozen=True)
class Secured:
    """A broker, and who it trusts."""

    broker: KafkaBroker
    authority: CertificateAuthority
    client: Certificate
    elsewhere: Certificate
    another_authority: CertificateAuthority

    def tls(
        self, authority: CertificateAuthority | None = None, shown: Certificate | None = None
    ) -> KafkaSecurity:
        return KafkaSecurity(
            SecurityProtocol.SSL,
            ssl_ca_file=(authority or self.authority).certificate,
            ssl_certificate_file=keystore(shown or self.client),
        )

    @property
    def tls_without_certificate(self) -> KafkaSecurity:
        return KafkaSecurity(SecurityProtocol.SSL, ssl_ca_file=self.authority.certificate)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    authority = CertificateAuthority(directory, "authority")
    host = authority.issue("host", hosts=("127.0.0.1",))
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore(host)),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.ssl.ssl.client.auth": "required",
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        at = f"listener.name.{listener}"
        settings |= {
            f"{at}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            f"{at}.plain.sasl.jaas.config": f"{PLAIN} required user_rlm={quoted(PASSWORD)};",
            f"{at}.scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
        }
    with kafka_broker(directory / "kafka", settings, listeners=SASL_AND_TLS) as broker:
        cluster = Cluster(broker.bootstrap_servers)
        cluster.create(Topic("seen", 1, 8192))
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion(SCRAM_USER, info, PASSWORD.encode())
        for altered in cluster.admin.alter_user_scram_credentials([user]).values():
            altered.result(CLIENT_TIMEOUT_S)
        wait_until_let_in(broker, directory / "password")
        yield Secured(
            broker,
            authority,
            client=authority.issue("client"),
            elsewhere=CertificateAuthority(directory, "elsewhere-ca").issue("elsewhere"),
            another_authority=CertificateAuthority(directory, "another"),
        )


def wait_until_let_in(broker: KafkaBroker, password_file: Path) -> None:
    """The controller has the new user before the broker has."""
    password_file.write_text(PASSWORD)
    security = KafkaSecurity(
        SecurityProtocol.SASL_PLAINTEXT, SaslMechanism.SCRAM_SHA_512, SCRAM_USER, password_file
    )
    asking = KafkaAdmin([broker.address("SASL_PLAINTEXT")], CLIENT_TIMEOUT_S, security)

    def is_let_in() -> bool:
        try:
            asking.view([])
        except ClusterUnreachableError:
            return False
        return True

    eventually(is_let_in)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file with the password."""
    path = tmp_path / "password"
    path.write_text(f"{PASSWORD}\n")
    return path


def sasl(
    protocol: SecurityProtocol,
    password_file: Path,
    mechanism: SaslMechanism = SaslMechanism.PLAIN,
    ca_file: Path | None = None,
) -> KafkaSecurity:
    user = "rlm" if mechanism is SaslMechanism.PLAIN else SCRAM_USER
    return KafkaSecurity(protocol, mechanism, user, password_file, ca_file)


def admin(secured: Secured, listener: str, security: KafkaSecurity = PLAINTEXT) -> KafkaAdmin:
    return KafkaAdmin([secured.broker.address(listener)], CLIENT_TIMEOUT_S, security)


def is_answered(asking: KafkaAdmin, secured: Secured) -> None:
    view = asking.view(["seen"])
    assert view.cluster_id == secured.broker.cluster_id
    assert isinstance(view.topics["seen"], TopicView)


def refusal(asking: KafkaAdmin) -> str:
    before_s = time.monotonic()
    with pytest.raises(ClusterUnreachableError) as refused:
        asking.view(["seen"])
    assert time.monotonic() - before_s < SOON_S
    assert "hunter" not in str(refused.value)
    return str(refused.value)


def test_a_listener_with_tls_answers_a_client_with_a_certificate(secured: Secured) -> None:
    asking = admin(secured, "SSL", secured.tls())
    is_answered(asking, secured)
    is_answered(asking, secured)


def test_a_key_may_be_a_file_with_a_password(secured: Secured, file: Path) -> None:
    file.write_text(KEY_PASSWORD)
    security = KafkaSecurity(
        SecurityProtocol.SSL,
        ssl_ca_file=secured.authority.certificate,
        ssl_certificate_file=secured.client.certificate,
        ssl_key_file=encrypted_key(secured.client.key, KEY_PASSWORD),
        ssl_key_password_file=file,
    )
    is_answered(admin(secured, "SSL", security), secured)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", [SASL_PLAINTEXT, SecurityProtocol.SASL_SSL])
def test_a_login_is_answered(
    secured: Secured, file: Path, protocol: SecurityProtocol, mechanism: SaslMechanism
) -> None:
    ca_file = secured.authority.certificate if protocol.has_tls else None
    security = sasl(protocol, file, mechanism, ca_file)
    is_answered(admin(secured, protocol.value, security), secured)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_reported_and_a_corrected_one_used_by_the_next_view(
    secured: Secured, file: Path, mechanism: SaslMechanism
) -> None:
    file.write_text("hunter3")
    asking = admin(secured, "SASL_PLAINTEXT", sasl(SASL_PLAINTEXT, file, mechanism))
    assert "SaslAuthenticationFailedError: Authentication failed" in refusal(asking)
    file.write_text(PASSWORD)
    is_answered(asking, secured)


def test_a_mechanism_that_the_broker_does_not_support_is_reported(
    secured: Secured, file: Path
) -> None:
    security = sasl(SASL_PLAINTEXT, file, SaslMechanism.SCRAM_SHA_256)
    assert "UnsupportedSaslMechanismError" in refusal(admin(secured, "SASL_PLAINTEXT", security))


def test_a_broker_of_another_authority_is_refused(secured: Secured) -> None:
    security = secured.tls(authority=secured.another_authority)
    assert "certificate verify failed" in refusal(admin(secured, "SSL", security))


def test_a_missing_client_certificate_is_reported(secured: Secured) -> None:
    reason = refusal(admin(secured, "SSL", secured.tls_without_certificate))
    assert CHECK_CERTIFICATE in reason


def test_a_client_certificate_that_the_broker_does_not_trust_is_reported(
    secured: Secured,
) -> None:
    reason = refusal(admin(secured, "SSL", secured.tls(shown=secured.elsewhere)))
    assert CHECK_CERTIFICATE in reason


def test_a_host_that_its_certificate_does_not_name_is_refused(secured: Secured) -> None:
    port = secured.broker.address("SSL").rpartition(":")[2]
    asking = KafkaAdmin([f"localhost:{port}"], CLIENT_TIMEOUT_S, secured.tls())
    assert "Hostname mismatch" in refusal(asking)


@pytest.mark.parametrize("listener", SASL_AND_TLS)
def test_plaintext_at_another_listener_is_reported(secured: Secured, listener: str) -> None:
    reason = refusal(admin(secured, listener))
    assert "check that the listener speaks RLM_KAFKA_SECURITY_PROTOCOL=PLAINTEXT" in reason


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_tls_at_another_listener_is_reported(secured: Secured, listener: str) -> None:
    reason = refusal(admin(secured, listener, secured.tls_without_certificate))
    assert "check that the listener speaks RLM_KAFKA_SECURITY_PROTOCOL=SSL" in reason


def test_a_password_file_that_disappears_is_reported(secured: Secured, file: Path) -> None:
    asking = admin(secured, "SASL_PLAINTEXT", sasl(SASL_PLAINTEXT, file))
    is_answered(asking, secured)
    file.unlink()
    assert refusal(asking) == (
        f"RLM_KAFKA_PASSWORD_FILE: {file}: cannot be read: No such file or directory"
    )
    file.write_text(PASSWORD)
    is_answered(asking, secured)


def test_no_socket_is_left_by_views_over_tls(secured: Secured) -> None:
    good = admin(secured, "SSL", secured.tls())
    refused = admin(secured, "SSL", secured.tls_without_certificate)
    is_answered(good, secured)
    before = open_files()
    for _ in range(3):
        is_answered(good, secured)
        refusal(refused)
    assert open_files() == before


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
