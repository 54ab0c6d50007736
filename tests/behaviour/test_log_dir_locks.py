"""Test Kafka's lock on a log directory, against another process and against a JVM."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from demos.kafka_broker import find_java
from services.rlm.kafka_log.log_dir import is_held_by_another
from services.rlm.kafka_log.partition_dir import LogDirError
from services.rlm.retention.local_files import LogDirLocks
from tests.harness.retained_log import PYTHON_HOLDER, other_process
from tests.unit.rlm.kafka_bytes import write_log_dir

_JAVA = """
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** As org.apache.kafka.server.util.FileLock does it. */
public class Lock {
    public static void main(String[] args) throws Exception {
        FileChannel channel = FileChannel.open(Path.of(args[0]), StandardOpenOption.CREATE,
            StandardOpenOption.READ, StandardOpenOption.WRITE);
        System.out.println(channel.tryLock() == null ? "refused" : "locked");
        System.in.read();
    }
}
"""


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return write_log_dir(tmp_path / "logs")


@pytest.fixture(params=["python", pytest.param("java", marks=pytest.mark.deep)])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Return a command that takes the lock of the given file and prints whether it has it."""
    if request.param == "python":
        return PYTHON_HOLDER
    source = tmp_path / "Lock.java"
    source.write_text(_JAVA)
    return [str(find_java()), str(source)]


def test_directory_locked_by_another_process_is_refused(
    log_dir: Path, command: list[str], tmp_path: Path
) -> None:
    free = write_log_dir(tmp_path / "free")
    with other_process(command, log_dir) as answer:
        assert answer == "locked"
        with pytest.raises(LogDirError, match=r"another process holds its \.lock: stop the broker"):
            LogDirLocks([free, log_dir])
        with other_process(command, free) as of_the_other:
            assert of_the_other == "locked"
    with closing(LogDirLocks([free, log_dir])) as locks:
        locks.require_held(log_dir)


def test_held_lock_excludes_other_processes_until_closed(log_dir: Path, command: list[str]) -> None:
    with closing(LogDirLocks([log_dir])), other_process(command, log_dir) as answer:
        assert answer == "refused"
    with other_process(command, log_dir) as answer:
        assert answer == "locked"


def test_a_lock_that_another_holds_is_seen_and_none_is_taken(
    log_dir: Path, command: list[str]
) -> None:
    assert not is_held_by_another(log_dir)
    with other_process(command, log_dir) as answer:
        assert answer == "locked"
        assert is_held_by_another(log_dir)
    assert (log_dir / ".lock").exists()
    assert not is_held_by_another(log_dir)
    with other_process(command, log_dir) as answer:
        assert answer == "locked"


def test_directory_without_meta_properties_is_refused_and_unchanged(tmp_path: Path) -> None:
    with pytest.raises(LogDirError, match=r"it has no meta\.properties"):
        LogDirLocks([tmp_path])
    assert list(tmp_path.iterdir()) == []


def test_another_directory_at_the_same_path_is_not_the_one_that_is_held(
    log_dir: Path, tmp_path: Path
) -> None:
    with closing(LogDirLocks([log_dir])) as locks:
        locks.require_held(log_dir)
        with pytest.raises(LogDirError, match="was replaced, so nothing is deleted"):
            locks.require_held(tmp_path)
        shutil.move(log_dir, tmp_path / "away")
        with pytest.raises(LogDirError, match="No such file"):
            locks.require_held(log_dir)
        write_log_dir(log_dir)
        (log_dir / ".lock").touch()
        with pytest.raises(LogDirError, match="was replaced, so nothing is deleted"):
            locks.require_held(log_dir)
