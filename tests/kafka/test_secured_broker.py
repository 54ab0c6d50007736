"""The poller's client at the listeners of a real broker that want TLS and SASL: it is answered, and
where it is not, it is told why within seconds."""

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
from services.rlm.kafka_admin.client import KafkaAdmin
from services.rlm.kafka_admin.cluster_view import ClusterUnreachableError, TopicView
from tests.harness.certificates import Certificate, encrypted_key, issue, make_authority
from tests.harness.eventually import eventually
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import CLIENT_TIMEOUT_S, Cluster, Topic

pytestmark = pytest.mark.kafka

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
    authority: Certificate
    client: Certificate
    elsewhere: Certificate
    another_authority: Certificate

    def trusts(self, authority: Certificate | None = None) -> str:
        trusted = (authority or self.authority).certificate
        return f"ssl.truststore.type=PEM\nssl.truststore.location={trusted}\n"

    def shows(self, certificate: Certificate | None = None) -> str:
        shown = (certificate or self.client).keystore
        return f"ssl.keystore.type=PEM\nssl.keystore.location={shown}\n"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    authority = make_authority(directory, "authority")
    host = issue(directory, "host", authority)
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(host.keystore),
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
        wait_until_let_in(broker, directory / "scram.properties")
        yield Secured(
            broker,
            authority,
            client=issue(directory, "client", authority),
            elsewhere=issue(directory, "elsewhere", make_authority(directory, "elsewhere-ca")),
            another_authority=make_authority(directory, "another"),
        )


def wait_until_let_in(broker: KafkaBroker, file: Path) -> None:
    """The controller has taken the new user before the broker knows of it."""
    file.write_text(sasl("SASL_PLAINTEXT", "SCRAM-SHA-512", SCRAM_USER))
    asking = KafkaAdmin([broker.address("SASL_PLAINTEXT")], CLIENT_TIMEOUT_S, file)

    def is_let_in() -> bool:
        try:
            asking.view([])
        except ClusterUnreachableError:
            return False
        return True

    eventually(is_let_in)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "client.properties"


def sasl(
    protocol: str, mechanism: str = "PLAIN", user: str = "rlm", password: str = PASSWORD
) -> str:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    return (
        f"security.protocol={protocol}\nsasl.mechanism={mechanism}\nsasl.jaas.config={module} \\\n"
        f"  required username={quoted(user)} password={quoted(password)};\n"
    )


def admin(secured: Secured, listener: str, file: Path | None, text: str = "") -> KafkaAdmin:
    if file is not None:
        file.write_text(text)
    return KafkaAdmin([secured.broker.address(listener)], CLIENT_TIMEOUT_S, file)


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


def test_a_listener_with_tls_answers_who_shows_a_certificate(secured: Secured, file: Path) -> None:
    text = f"security.protocol=SSL\n{secured.trusts()}{secured.shows()}"
    asking = admin(secured, "SSL", file, text)
    is_answered(asking, secured)
    is_answered(asking, secured)


def test_a_key_may_stand_in_the_file_behind_a_password(secured: Secured, file: Path) -> None:
    key = encrypted_key(secured.client.key, KEY_PASSWORD).read_text().replace("\n", " \\\n ")
    chain = secured.client.certificate.read_text().replace("\n", " \\\n ")
    text = (
        f"security.protocol=SSL\n{secured.trusts()}ssl.keystore.type=PEM\n"
        f"ssl.keystore.key={key}\nssl.keystore.certificate.chain={chain}\n"
        f"ssl.key.password={KEY_PASSWORD}\n"
    )
    is_answered(admin(secured, "SSL", file, text), secured)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_who_logs_in_is_answered(
    secured: Secured, file: Path, protocol: str, mechanism: str
) -> None:
    user = "rlm" if mechanism == "PLAIN" else SCRAM_USER
    text = sasl(protocol, mechanism, user) + (secured.trusts() if protocol == "SASL_SSL" else "")
    is_answered(admin(secured, protocol, file, text), secured)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_told_and_a_corrected_one_taken_by_the_next_view(
    secured: Secured, file: Path, mechanism: str
) -> None:
    user = "rlm" if mechanism == "PLAIN" else SCRAM_USER
    wrong = sasl("SASL_PLAINTEXT", mechanism, user, "hunter3")
    asking = admin(secured, "SASL_PLAINTEXT", file, wrong)
    assert "SaslAuthenticationFailedError: Authentication failed" in refusal(asking)
    file.write_text(sasl("SASL_PLAINTEXT", mechanism, user))
    is_answered(asking, secured)


def test_a_mechanism_that_the_broker_does_not_take_is_told(secured: Secured, file: Path) -> None:
    text = sasl("SASL_PLAINTEXT", "SCRAM-SHA-256")
    told = refusal(admin(secured, "SASL_PLAINTEXT", file, text))
    assert "UnsupportedSaslMechanismError" in told


def test_a_broker_of_another_authority_is_told(secured: Secured, file: Path) -> None:
    text = f"security.protocol=SSL\n{secured.trusts(secured.another_authority)}{secured.shows()}"
    assert "certificate verify failed" in refusal(admin(secured, "SSL", file, text))


def test_a_missing_client_certificate_is_told(secured: Secured, file: Path) -> None:
    text = f"security.protocol=SSL\n{secured.trusts()}"
    assert "must a client show a certificate?" in refusal(admin(secured, "SSL", file, text))


def test_a_client_certificate_that_the_broker_does_not_trust_is_told(
    secured: Secured, file: Path
) -> None:
    text = f"security.protocol=SSL\n{secured.trusts()}{secured.shows(secured.elsewhere)}"
    assert "must a client show a certificate?" in refusal(admin(secured, "SSL", file, text))


def test_a_host_that_its_certificate_does_not_name_is_told_unless_names_are_not_checked(
    secured: Secured, file: Path
) -> None:
    port = secured.broker.address("SSL").rpartition(":")[2]
    asking = KafkaAdmin([f"localhost:{port}"], CLIENT_TIMEOUT_S, file)
    text = f"security.protocol=SSL\n{secured.trusts()}{secured.shows()}"
    file.write_text(text)
    assert "Hostname mismatch" in refusal(asking)
    file.write_text(f"{text}ssl.endpoint.identification.algorithm=\n")
    is_answered(asking, secured)


@pytest.mark.parametrize("listener", SASL_AND_TLS)
def test_who_speaks_plaintext_is_told_that_the_listener_may_not(
    secured: Secured, listener: str
) -> None:
    told = refusal(admin(secured, listener, None))
    assert "spoken to with security.protocol=PLAINTEXT; is that what this listener speaks" in told


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_who_speaks_tls_is_told_that_the_listener_may_not(
    secured: Secured, file: Path, listener: str
) -> None:
    told = refusal(admin(secured, listener, file, f"security.protocol=SSL\n{secured.trusts()}"))
    assert "spoken to with security.protocol=SSL; is that what this listener speaks" in told


def test_a_file_that_is_spoiled_meanwhile_is_told(secured: Secured, file: Path) -> None:
    asking = admin(secured, "SASL_PLAINTEXT", file, sasl("SASL_PLAINTEXT"))
    is_answered(asking, secured)
    file.unlink()
    assert refusal(asking) == (
        f"RLM_KAFKA_CLIENT_CONFIG_FILE: {file}: cannot be read: No such file or directory"
    )
    file.write_text(sasl("SASL_PLAINTEXT"))
    is_answered(asking, secured)


def test_no_socket_is_left_of_views_over_tls(secured: Secured, file: Path) -> None:
    good = f"security.protocol=SSL\n{secured.trusts()}{secured.shows()}"
    asking = admin(secured, "SSL", file, good)
    is_answered(asking, secured)
    before = open_files()
    for text in (good, f"security.protocol=SSL\n{secured.trusts()}"):
        file.write_text(text)
        for _ in range(3):
            if text is good:
                is_answered(asking, secured)
            else:
                refusal(asking)
    assert open_files() == before


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
