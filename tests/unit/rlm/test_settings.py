import pytest
from pydantic import ValidationError

from services.rlm.lifecycle.sources import PartitionSource
from services.rlm.settings import RlmSettings


def settings(**given: int | str) -> RlmSettings:
    return RlmSettings.model_validate(
        {"rsm_address": "rsm:1", "rlmm_address": "rlmm:1", **given}, strict=False
    )


def test_reads_of_the_tier_leave_threads_to_local_reads_by_default() -> None:
    assert settings().remote_log_reader_threads < settings().stream_threads


def test_as_many_reads_of_the_tier_as_streams_of_one_address_are_refused() -> None:
    assert settings(remote_log_reader_threads=2, stream_threads=4).stream_threads == 4
    with pytest.raises(ValidationError, match="RLM_REMOTE_LOG_READER_THREADS must be below"):
        settings(remote_log_reader_threads=3, stream_threads=4)
    everything = settings(remote_log_reader_threads=3, stream_threads=4, address_share_percent=100)
    assert everything.stream_threads == 4


@pytest.mark.parametrize("lease_ms", [0, 999, 3_600_001])
def test_a_lease_that_rlmm_would_refuse_is_refused_at_the_start(lease_ms: int) -> None:
    assert settings().copy_lease_ms == 60_000
    with pytest.raises(ValidationError, match="copy_lease_ms"):
        settings(copy_lease_ms=lease_ms)


def test_what_is_told_needs_logs() -> None:
    assert settings().partition_source is PartitionSource.STATIC
    with pytest.raises(ValidationError, match="RLM_PARTITION_SOURCE=callbacks needs RLM_LOG_DIRS"):
        settings(partition_source="callbacks")
    told = settings(partition_source="callbacks", log_dirs="/var/kafka")
    assert told.partition_source is PartitionSource.CALLBACKS
