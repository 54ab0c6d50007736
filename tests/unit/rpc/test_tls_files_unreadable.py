"""Test that a TLS file whose mode forbids reading it is named, by a process that is not root."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from services.local.certificates import CertificateAuthority
from services.rpc.tls import TlsFiles

NOBODY = 65_534
READ = """
import os, sys
from pathlib import Path
from services.rpc.tls import TlsFileError, TlsFiles, read_tls
files = TlsFiles(*map(Path, sys.argv[2:]))
if os.geteuid() == 0:
    read_tls(files)  # It imports modules that only root may read, perhaps.
    os.setgroups([])
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
try:
    read_tls(files)
except TlsFileError as e:
    print(e)
"""


@pytest.fixture
def files() -> Iterator[TlsFiles]:
    """Provide files that belong to the reader, outside of pytest's directory, which is root's."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        authority = CertificateAuthority(directory)
        own = authority.issue("own")
        directory.chmod(0o755)
        if os.geteuid() == 0:
            for path in directory.rglob("*"):
                os.chown(path, NOBODY, NOBODY)
        yield TlsFiles(own.certificate, own.key, authority.certificate)


def refusal(files: TlsFiles) -> str:
    """Read the files in a process without root's rights; return the error, if any."""
    paths = [str(path) for path in (files.certificate, files.key, files.ca)]
    command = [sys.executable, "-c", READ, str(NOBODY), *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


@pytest.mark.deep
@pytest.mark.parametrize("which", ["certificate", "key", "ca"])
def test_a_file_that_may_not_be_read_is_named(files: TlsFiles, which: str) -> None:
    assert refusal(files) == ""
    path: Path = getattr(files, which)
    path.chmod(0)
    assert refusal(files) == f"{path}: cannot be read: Permission denied"
