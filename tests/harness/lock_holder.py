"""Hold Kafka's lock on a log directory in another process, as a broker does."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_PYTHON = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("refused", flush=True)
else:
    print("locked", flush=True)
    sys.stdin.read()
"""
PYTHON_HOLDER = [sys.executable, "-c", _PYTHON]


@contextmanager
def other_process(command: Sequence[str], log_dir: Path) -> Iterator[str]:
    """Yield the process's output; if it got the lock, it holds the lock until the end."""
    with subprocess.Popen(
        [*command, str(log_dir / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()
