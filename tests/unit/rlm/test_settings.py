from pathlib import Path

import pytest
from pydantic import ValidationError

from services.rlm.roles.partition_roles import PartitionSource
from services.rlm.settings import RlmSettings


def settings(**given: int | str) -> RlmSettings:
    return RlmSettings.model_validate(
        {"rsm_address": "rsm:1", "rlmm_address": "rlmm:1", **given}, strict=False
    )


def test_reads_of_the_tier_leave_threads_to_local_reads_by_default() -> None:
    assert settings().remote_log_reader_threads < settings().stream_threads


def test_as_many_reads_of_the_tier_as_streams_are_refused() -> None:
    assert settings(remote_log_reader_threads=3, stream_threads=4).stream_threads == 4
    with pytest.raises(ValidationError, match="RLM_REMOTE_LOG_READER_THREADS must be below"):
        settings(remote_log_reader_threads=4, stream_threads=4)


@pytest.mark.parametrize("lease_ms", [0, 999, 3_600_001])
def test_a_lease_that_rlmm_would_refuse_is_refused_at_the_start(lease_ms: int) -> None:
    assert settings().copy_lease_ms == 60_000
    with pytest.raises(ValidationError, match="copy_lease_ms"):
        settings(copy_lease_ms=lease_ms)


def test_callbacks_need_log_directories() -> None:
    assert settings().partition_source is PartitionSource.STATIC
    with pytest.raises(ValidationError, match="RLM_PARTITION_SOURCE=callbacks needs RLM_LOG_DIRS"):
        settings(partition_source="callbacks")
    parsed = settings(partition_source="callbacks", log_dirs="/var/kafka")
    assert parsed.partition_source is PartitionSource.CALLBACKS


@pytest.mark.parametrize("inside", ["", "/remote-log-index-cache", "/../kafka/x"])
def test_an_index_cache_in_the_brokers_directories_is_refused(tmp_path: Path, inside: str) -> None:
    logs = tmp_path / "kafka"
    with pytest.raises(ValidationError, match="RLM_REMOTE_LOG_INDEX_FILE_CACHE_DIR must not be in"):
        settings(log_dirs=str(logs), remote_log_index_file_cache_dir=f"{logs}{inside}")


def test_an_index_cache_beside_the_brokers_directories_is_none_of_theirs(tmp_path: Path) -> None:
    beside = str(tmp_path / "kafka-indexes")
    parsed = settings(log_dirs=str(tmp_path / "kafka"), remote_log_index_file_cache_dir=beside)
    assert parsed.remote_log_index_file_cache_dir == Path(beside)
    assert settings(remote_log_index_file_cache_dir="").remote_log_index_file_cache_dir is None
