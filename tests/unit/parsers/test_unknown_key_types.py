"""Test that a key of an unknown type is refused by its file, wherever it stands."""

import base64
from pathlib import Path

import pytest

from services.local.certificates import CertificateAuthority
from services.rpc.tls import TlsFileError, TlsFiles, read_tls

EC_KEY = bytes.fromhex("06072a8648ce3d0201")
UNKNOWN = bytes.fromhex("06072a8648ce3d027f")


def of_unknown_type(pem: bytes) -> bytes:
    first, *lines, last = pem.decode("ascii").split("\n")[:-1]
    changed = base64.b64decode("".join(lines)).replace(EC_KEY, UNKNOWN)
    return f"{first}\n{base64.encodebytes(changed).decode('ascii')}{last}\n".encode("ascii")


@pytest.mark.parametrize("which", ["key", "certificate"])
def test_a_key_of_an_unknown_type_is_refused(tmp_path: Path, which: str) -> None:
    authority = CertificateAuthority(tmp_path)
    issued = authority.issue("rsm")
    path: Path = getattr(issued, which)
    path.write_bytes(of_unknown_type(path.read_bytes()))
    files = TlsFiles(issued.certificate, issued.key, authority.certificate)
    with pytest.raises(TlsFileError, match="is of an unknown type; use an RSA or EC key"):
        read_tls(files)
