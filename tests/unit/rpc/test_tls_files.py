"""Test that files for TLS are checked, and read again when they change."""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import certifi
import pytest

from services.local.certificates import Certificate, CertificateAuthority
from services.rpc.tls import POLL_INTERVAL_S, ReloadedTls, TlsFileError, TlsFiles, read_tls
from tests.harness.certificates import bad_certificates, encrypted_key
from tests.harness.clocks import Clock


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path)


@pytest.fixture
def own(authority: CertificateAuthority) -> Certificate:
    return authority.issue("own")


@pytest.fixture
def files(authority: CertificateAuthority, own: Certificate) -> TlsFiles:
    return TlsFiles(own.certificate, own.key, authority.certificate)


def test_good_files_are_read(files: TlsFiles, own: Certificate) -> None:
    material = read_tls(files)
    assert material.certificate == own.certificate.read_bytes()
    assert material.key == own.key.read_bytes()
    assert material.ca
    assert material.expires_at > 0


def test_old_certificates_in_a_bundle_of_authorities_are_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_tls(TlsFiles(None, None, Path(certifi.where()))).ca


def test_neither_key_nor_certificate_is_printed(files: TlsFiles) -> None:
    assert "PRIVATE KEY" not in repr(read_tls(files))


@pytest.mark.parametrize(
    ("replace", "why"),
    [(Path.exists, "No such file or directory"), (Path.mkdir, "Is a directory")],
    ids=["missing", "directory"],
)
@pytest.mark.parametrize("which", ["certificate", "key", "ca"])
def test_a_file_that_cannot_be_read_is_named(
    files: TlsFiles, which: str, replace: Callable[[Path], object], why: str
) -> None:
    path: Path = getattr(files, which)
    path.unlink()
    replace(path)
    with pytest.raises(TlsFileError, match=f"^{path}: cannot be read: {why}$"):
        read_tls(files)


@pytest.mark.parametrize(
    ("which", "why"),
    [
        ("certificate", "holds no certificate in PEM"),
        ("key", "holds no private key in PEM; write the key unencrypted in PEM"),
        ("ca", "holds no certificate in PEM"),
    ],
)
@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"-----BEGIN CERTIFICATE-----\nAAAA"])
def test_a_file_that_is_no_pem_is_named(
    files: TlsFiles, which: str, why: str, content: bytes
) -> None:
    path: Path = getattr(files, which)
    path.write_bytes(content)
    with pytest.raises(TlsFileError, match=f"^{path}: {why}$"):
        read_tls(files)


def test_an_encrypted_key_is_named(files: TlsFiles, own: Certificate) -> None:
    encrypted_key(own.key, "swordfish").replace(own.key)
    with pytest.raises(TlsFileError, match=f"{own.key}: is encrypted; write the key unencrypted"):
        read_tls(files)


def test_the_key_of_another_certificate_is_named(
    authority: CertificateAuthority, own: Certificate
) -> None:
    other = authority.issue("other")
    swapped = TlsFiles(own.certificate, other.key, authority.certificate)
    with pytest.raises(
        TlsFileError,
        match=f"^{other.key}: is the key of another certificate than {own.certificate}$",
    ):
        read_tls(swapped)


def test_certificate_and_key_in_each_others_place_are_named(
    files: TlsFiles, own: Certificate
) -> None:
    swapped = TlsFiles(own.key, own.certificate, files.ca)
    with pytest.raises(TlsFileError, match=f"^{own.key}: holds no certificate in PEM$"):
        read_tls(swapped)


def test_dates_are_checked(authority: CertificateAuthority, tmp_path: Path) -> None:
    bad = bad_certificates(authority, tmp_path)
    for certificate, why in (
        (bad.expired, "the certificate expired at .*; renew it"),
        (bad.not_yet_valid, "the certificate is not valid before .*; check this machine's clock"),
    ):
        with pytest.raises(TlsFileError, match=f"^{certificate.certificate}: {why}$"):
            read_tls(TlsFiles(certificate.certificate, certificate.key, authority.certificate))


def test_new_files_are_read_after_an_interval(
    files: TlsFiles, authority: CertificateAuthority
) -> None:
    clock = Clock()
    tls = ReloadedTls(files, clock)
    first = tls.material()
    authority.issue("own")
    assert tls.material() is first
    clock.move(POLL_INTERVAL_S)
    assert tls.material() == read_tls(files) != first
    assert tls.material() is tls.material()


def _remove(own: Certificate, _: CertificateAuthority) -> None:
    own.key.unlink()


def _swap(own: Certificate, authority: CertificateAuthority) -> None:
    authority.issue("other").key.replace(own.key)


def _expire(own: Certificate, authority: CertificateAuthority) -> None:
    expired = bad_certificates(authority, own.key.parent).expired
    expired.key.replace(own.key)
    expired.certificate.replace(own.certificate)


@pytest.mark.parametrize("spoil", [_remove, _swap, _expire])
def test_bad_files_leave_the_previous_ones_in_force_with_one_warning(
    files: TlsFiles,
    own: Certificate,
    authority: CertificateAuthority,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Certificate, CertificateAuthority], None],
) -> None:
    clock = Clock()
    tls = ReloadedTls(files, clock)
    good = tls.material()
    spoil(own, authority)

    with caplog.at_level(logging.WARNING, logger="sediment.tls"):
        for _ in range(5):
            clock.move(POLL_INTERVAL_S)
            assert tls.material() is good

    (record,) = caplog.records
    assert str(own.key.parent) in record.getMessage()
    assert record.getMessage().endswith("the previous certificate, key and CA stay in force")

    authority.issue("own")
    clock.move(POLL_INTERVAL_S)
    assert tls.material() == read_tls(files) != good


def test_a_key_that_follows_its_certificate_a_moment_later_is_no_warning(
    files: TlsFiles,
    own: Certificate,
    authority: CertificateAuthority,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    tls = ReloadedTls(files, clock)
    renewed = authority.issue("renewed")
    renewed.certificate.replace(own.certificate)
    with caplog.at_level(logging.WARNING, logger="sediment.tls"):
        clock.move(POLL_INTERVAL_S)
        tls.material()
        renewed.key.replace(own.key)
        clock.move(POLL_INTERVAL_S)
        assert tls.material() == read_tls(files)
    assert caplog.records == []


def test_file_that_becomes_bad_again_is_logged_again(
    files: TlsFiles,
    own: Certificate,
    authority: CertificateAuthority,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    tls = ReloadedTls(files, clock)
    with caplog.at_level(logging.WARNING, logger="sediment.tls"):
        for _ in range(2):
            own.key.unlink()
            for _ in range(3):
                clock.move(POLL_INTERVAL_S)
                tls.material()
            authority.issue("own")
            clock.move(POLL_INTERVAL_S)
            tls.material()
    assert len(caplog.records) == 2
