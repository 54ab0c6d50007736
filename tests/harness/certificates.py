"""Make certificate authorities and certificates with the openssl of this machine."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from services.local.process import LOOPBACK

_TIMEOUT_S = 30.0
_DAYS = "2"


@dataclass(frozen=True)
class Certificate:
    """A private key (PKCS #8, as Kafka reads it) and a certificate for it, each a file of PEM."""

    key: Path
    certificate: Path

    @property
    def keystore(self) -> Path:
        """Return one file of both."""
        path = self.key.with_suffix(".keystore.pem")
        path.write_text(self.key.read_text() + self.certificate.read_text())
        return path


def make_authority(directory: Path, name: str) -> Certificate:
    """Make a certificate authority that nothing else trusts."""
    made = _paths(directory, name)
    _openssl("req", "-x509", *_new_key(made), "-days", _DAYS, "-subj", f"/CN={name}")
    return made


def issue(
    directory: Path, name: str, authority: Certificate, address: str = LOOPBACK
) -> Certificate:
    """Make a certificate of this authority, for the host with this IP address."""
    made = _paths(directory, name)
    _openssl(
        *("req", "-x509", *_new_key(made), "-days", _DAYS, "-subj", f"/CN={name}"),
        *("-CA", authority.certificate, "-CAkey", authority.key),
        *("-addext", f"subjectAltName=IP:{address}"),
        *("-addext", "basicConstraints=critical,CA:FALSE"),
    )
    return made


def encrypted_key(key: Path, password: str) -> Path:
    """Return the same key, encrypted with a password."""
    path = key.with_suffix(".encrypted.key")
    _openssl("pkcs8", "-topk8", "-in", key, "-out", path, "-passout", f"pass:{password}")
    return path


def _paths(directory: Path, name: str) -> Certificate:
    return Certificate(directory / f"{name}.key", directory / f"{name}.crt")


def _new_key(made: Certificate) -> list[str | Path]:
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    return [*curve, "-keyout", made.key, "-out", made.certificate]


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(
        ["openssl", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"openssl {arguments[0]}: {done.stdout}")
