"""Test that a list ends if a store repeats a page for ever."""

import pytest

from services.api.errors import RetriableRemoteStorageError
from tests.harness.parsers.of_stores import OneAnswer, storage_over

PAGE = (
    b"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
    b"<NextUploadIdMarker>u</NextUploadIdMarker></ListMultipartUploadsResult>"
)


def test_a_page_of_uploads_that_leads_to_itself_is_refused() -> None:
    answer = OneAnswer(200, {"content-type": "application/xml"}, PAGE)
    uploads = storage_over(answer).matching_uploads("tier/")
    with pytest.raises(RetriableRemoteStorageError, match="is that page again"):
        list(uploads)
    assert answer.requests == 2
