"""Test how RLM logs a partition's failure."""

import logging
from uuid import uuid4

import pytest

from services.api.errors import RemoteResourceNotFoundError, RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import FetchError
from services.rlm.fetch.errors import LostSegmentError, kafka_error

TP = TopicIdPartition(uuid4(), "orders", 0)


@pytest.mark.parametrize(
    ("failure", "has_traceback"),
    [
        (LostSegmentError("segment 7 is lost"), False),
        (RemoteResourceNotFoundError("index 7 is lost"), False),
        (RemoteStorageError("a defect"), True),
    ],
    ids=["a lost segment", "a lost index", "anything else"],
)
def test_lost_objects_are_logged_in_one_line(
    caplog: pytest.LogCaptureFixture, failure: Exception, has_traceback: bool
) -> None:
    with caplog.at_level(logging.ERROR):
        assert kafka_error(TP, failure) is FetchError.UNKNOWN_SERVER_ERROR
    [record] = caplog.records
    assert str(failure) in record.getMessage()
    assert (record.exc_info is not None) is has_traceback
