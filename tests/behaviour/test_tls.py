"""Test mutual TLS between our clients and servers: who is refused, with which error, and that files
may change while calls run.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import grpc
import psutil
import pytest

from services.api.errors import InvalidRequestError, RetriableRemoteStorageError
from services.api.segment_objects import ObjectQuery
from services.common.client_security import PLAINTEXT, ClientSecurity
from services.local.certificates import Certificate
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient, SegmentObjectsClient
from tests.contract.remote_storage_manager_contract import Files, copied, some_bytes
from tests.harness.certificates import (
    OPERATOR,
    BadCertificates,
    Parties,
    bad_certificates,
    shown_by,
)
from tests.harness.eventually import eventually
from tests.harness.secured import Secrets, make_secrets, serving_rsm

MIB = 1024 * 1024


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    return make_secrets(tmp_path / "tls")


@pytest.fixture
def bad(secrets: Secrets, tmp_path: Path) -> BadCertificates:
    return bad_certificates(secrets.authority, tmp_path / "tls")


@pytest.fixture
def address(secrets: Secrets, tmp_path: Path) -> Iterator[str]:
    with serving_rsm(secrets.settings(), tmp_path / "objects") as ports:
        yield ports.address


def call(address: str, security: ClientSecurity) -> None:
    with open_channel(address, security) as channel:
        SegmentObjectsClient(channel, address).list_segment_objects(ObjectQuery())


def call_with_unchecked_files(address: str, secrets: Secrets, shown: Certificate) -> None:
    """Call as a client that does not check the dates of its own certificate."""
    credentials = grpc.ssl_channel_credentials(
        secrets.authority.certificate.read_bytes(),
        shown.key.read_bytes(),
        shown.certificate.read_bytes(),
    )
    with grpc.secure_channel(address, credentials) as channel:
        SegmentObjectsClient(channel, address).list_segment_objects(ObjectQuery())


def test_a_client_with_a_certificate_is_served(address: str, secrets: Secrets) -> None:
    call(address, secrets.security())


@pytest.mark.parametrize("which", ["expired", "not_yet_valid", "self_signed", "wrong_ca"])
def test_a_client_with_a_bad_certificate_is_refused(
    address: str, secrets: Secrets, bad: BadCertificates, which: str
) -> None:
    with pytest.raises(RetriableRemoteStorageError, match="the server closed the connection"):
        call_with_unchecked_files(address, secrets, getattr(bad, which))
    call(address, secrets.security())


def test_a_client_without_a_certificate_is_refused(address: str, secrets: Secrets) -> None:
    without = ClientSecurity(secrets.authority.certificate)
    with pytest.raises(
        RetriableRemoteStorageError,
        match=f"rsm at {address}: the server closed the connection; this client shows no "
        f"certificate and no token; files of this client: CA {without.ca}$",
    ):
        call(address, without)


def test_a_client_without_tls_is_refused(address: str) -> None:
    with pytest.raises(
        RetriableRemoteStorageError,
        match=f"rsm at {address}: the server closed the connection; this client speaks plaintext: "
        "give it TLS files if",
    ):
        call(address, PLAINTEXT)


@pytest.mark.parametrize("which", ["self_signed", "wrong_ca"])
def test_error_of_a_refused_client_names_the_files_to_check(
    address: str, secrets: Secrets, bad: BadCertificates, which: str
) -> None:
    shown: Certificate = getattr(bad, which)
    with pytest.raises(
        RetriableRemoteStorageError,
        match=f"rsm at {address}: .*files of this client: CA {secrets.authority.certificate}, "
        f"certificate {shown.certificate}, key {shown.key}$",
    ):
        call(address, secrets.security(shown))


@pytest.mark.parametrize("which", ["expired", "not_yet_valid"])
def test_client_checks_the_dates_of_its_own_certificate(
    address: str, secrets: Secrets, bad: BadCertificates, which: str
) -> None:
    shown: Certificate = getattr(bad, which)
    with pytest.raises(InvalidRequestError, match=f"^{shown.certificate}: the certificate "):
        call(address, secrets.security(shown))


@pytest.mark.parametrize(
    ("which", "why"),
    [
        ("self_signed", "is of no authority in the CA file"),
        ("wrong_ca", "is of no authority in the CA file"),
        ("wrong_name", "is for another host name"),
        ("no_name", "is for another host name"),
    ],
)
def test_a_server_with_a_bad_certificate_is_refused(
    secrets: Secrets, bad: BadCertificates, tmp_path: Path, which: str, why: str
) -> None:
    settings = secrets.settings(server=getattr(bad, which))
    with (
        serving_rsm(settings, tmp_path / "objects") as ports,
        pytest.raises(
            RetriableRemoteStorageError,
            match=f"rsm at {ports.address}: the server's certificate {why}; "
            f"files of this client: CA {secrets.authority.certificate}, certificate",
        ),
    ):
        call(ports.address, secrets.security())


@contextmanager
def bare_server(shown: Certificate) -> Iterator[str]:
    """Serve TLS with a certificate whose dates nobody checks before the client does."""
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials(
        [(shown.key.read_bytes(), shown.certificate.read_bytes())]
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("which", "why"),
    [("expired", "certificate has expired"), ("not_yet_valid", "certificate is not yet valid")],
)
def test_a_client_checks_the_dates_of_the_server(
    secrets: Secrets, bad: BadCertificates, which: str, why: str
) -> None:
    with (
        bare_server(getattr(bad, which)) as address,
        pytest.raises(RetriableRemoteStorageError, match=f"rsm at {address}: .*{why}"),
    ):
        call(address, secrets.security())


@pytest.mark.parametrize("which", ["expired", "not_yet_valid"])
def test_a_server_with_wrong_dates_does_not_start(
    secrets: Secrets, bad: BadCertificates, tmp_path: Path, which: str
) -> None:
    shown: Certificate = getattr(bad, which)
    with (
        pytest.raises(SystemExit, match=f"^{shown.certificate}: the certificate "),
        serving_rsm(secrets.settings(server=shown), tmp_path / "objects"),
    ):
        pass


def test_a_server_without_tls_is_named(secrets: Secrets, tmp_path: Path) -> None:
    settings = secrets.settings(
        tls_certificate_file=None,
        tls_key_file=None,
        tls_client_ca_file=None,
        policy_file=None,
        plaintext=True,
    )
    with (
        serving_rsm(settings, tmp_path / "objects") as ports,
        pytest.raises(RetriableRemoteStorageError, match="the server does not speak TLS; files"),
    ):
        call(ports.address, secrets.security())


def test_a_server_that_is_down_is_no_matter_of_files(address: str, secrets: Secrets) -> None:
    with pytest.raises(RetriableRemoteStorageError, match="Connection refused") as raised:
        call("127.0.0.1:1", secrets.security())
    assert "files of this client" not in str(raised.value)


def test_plaintext_is_warned_of(
    secrets: Secrets, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = secrets.settings(
        tls_certificate_file=None,
        tls_key_file=None,
        tls_client_ca_file=None,
        policy_file=None,
        plaintext=True,
    )
    with (
        caplog.at_level(logging.WARNING, logger="sediment.tls"),
        serving_rsm(settings, tmp_path / "objects") as ports,
    ):
        call(ports.address, PLAINTEXT)
    (warning,) = (record for record in caplog.records if record.name == "sediment.tls")
    assert warning.getMessage().startswith("serving without TLS: anyone who can reach this port")


def test_neither_tls_nor_plaintext_serves_nothing(secrets: Secrets, tmp_path: Path) -> None:
    settings = secrets.settings(
        tls_certificate_file=None, tls_key_file=None, tls_client_ca_file=None, policy_file=None
    )
    with (
        pytest.raises(SystemExit, match="no TLS: set TLS_CERTIFICATE_FILE"),
        serving_rsm(settings, tmp_path / "objects"),
    ):
        pass


def connections_to(address: str) -> int:
    """Return how many connections to the server the clients of this process have."""
    port = int(address.rpartition(":")[2])
    connections = psutil.Process().net_connections("tcp")
    return [c.raddr[1:] for c in connections].count((port,))


@pytest.mark.deep
def test_everything_is_rotated_while_calls_run(
    address: str, secrets: Secrets, tmp_path: Path
) -> None:
    files = Files(some_bytes(8 * MIB))
    parties = Parties(
        secrets.authority.certificate,
        {address: secrets.server},
        [secrets.operator],
        {"operator": OPERATOR},
    )
    with open_channel(address, secrets.security()) as channel:
        rsm, objects = (
            RemoteStorageManagerClient(channel, address),
            SegmentObjectsClient(channel, address),
        )
        metadata = copied(rsm, files)
        stream = iter(rsm.fetch_log_segment(metadata, 0))
        begun = next(stream)

        calls, is_rotated = 0, Event()
        with ThreadPoolExecutor(1) as pool:
            rotation = pool.submit(parties.rotate, tmp_path / "successor", "successor")
            rotation.add_done_callback(lambda _: is_rotated.set())
            while not is_rotated.wait(0.02):
                objects.list_segment_objects(ObjectQuery())
                calls += 1
            rotation.result()

        def connections() -> int:
            objects.list_segment_objects(ObjectQuery())
            return connections_to(address)

        # The stream has the connection of before, the calls have one with the new certificate.
        eventually(lambda: connections() == 2, poll_ms=200)
        assert b"".join([begun, *stream]) == files.log
        eventually(lambda: connections() == 1, poll_ms=200)
        assert calls > 10
    call(address, secrets.security())


def test_a_running_service_keeps_its_files_if_new_ones_are_bad(
    address: str, secrets: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="sediment.tls"):
        before = shown_by(address, secrets.authority.certificate, secrets.operator)
        secrets.server.key.write_bytes(secrets.operator.key.read_bytes())
        eventually(
            lambda: (
                shown_by(address, secrets.authority.certificate, secrets.operator)
                and caplog.records
            ),
            poll_ms=300,
        )
        assert shown_by(address, secrets.authority.certificate, secrets.operator) == before
    assert [record.getMessage() for record in caplog.records] == [
        f"{secrets.server.key}: is the key of another certificate than "
        f"{secrets.server.certificate}; the previous certificate, key and CA stay in force"
    ]


@pytest.mark.parametrize("missing", ["tls_certificate_file", "tls_key_file", "tls_client_ca_file"])
def test_a_service_without_a_file_does_not_start(
    secrets: Secrets, tmp_path: Path, missing: str
) -> None:
    nowhere = tmp_path / "nowhere"
    with (
        pytest.raises(SystemExit, match=f"^{nowhere}: cannot be read: No such file or directory$"),
        serving_rsm(secrets.settings(None, **{missing: nowhere}), tmp_path / "objects"),
    ):
        pass


def test_a_service_with_the_key_of_another_certificate_does_not_start(
    secrets: Secrets, tmp_path: Path
) -> None:
    other = secrets.operator.key
    with (
        pytest.raises(SystemExit, match=f"^{other}: is the key of another certificate than "),
        serving_rsm(secrets.settings(tls_key_file=other), tmp_path / "objects"),
    ):
        pass
