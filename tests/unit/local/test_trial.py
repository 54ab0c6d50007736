"""Check what the servers of a trial refuse before they start."""

import subprocess
import sys
from pathlib import Path


def test_a_missing_secret_is_named(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    command = [sys.executable, "-m", "services.local.trial", str(tmp_path), str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    missing = tmp_path / "access-key"
    assert (done.returncode, done.stderr) == (
        1,
        f"{missing}: cannot be read: No such file or directory\n",
    )
    assert not (tmp_path / "data").exists()
