"""Listings through a bad connection: no answer but one of an S3 store counts as a list."""

from collections.abc import Callable, Iterator

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.segment_objects import ObjectQuery, all_multipart_uploads, all_segment_objects
from services.local.seaweedfs import S3Endpoint
from services.rsm.manager import ObjectRemoteStorageManager
from tests.contract.remote_storage_manager_contract import Files, a_segment, copied
from tests.contract.rsm_over_s3 import settings_for
from tests.contract.rsm_through_faults import rsm_behind
from tests.harness.faults import Answer, Corrupt, Direction, Fault, Truncate
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy

NOT_A_LIST: dict[str, Fault] = {
    "page": Answer(200, page="<html><body>Please sign in</body></html>"),
    "page that is no XML": Answer(200, page="<html><body>Please sign in<br></body></html>"),
    "nothing": Answer(200, page=" "),
    "half": Truncate(60),
    "wrong byte": Corrupt(1, Direction.RESPONSE),
    "503": Answer(503),
}

Listing = Callable[[ObjectRemoteStorageManager], object]

LISTINGS: dict[str, tuple[str, Listing]] = {
    "objects": (
        "ListObjectsV2",
        lambda rsm: list(all_segment_objects(rsm.objects, ObjectQuery())),
    ),
    "objects of a copy that never finished": (
        "ListObjectsV2",
        lambda rsm: rsm.delete_log_segment_data(a_segment()),
    ),
    "uploads": ("ListMultipartUploads", lambda rsm: list(all_multipart_uploads(rsm.objects))),
    "uploads of a copy that never finished": (
        "ListMultipartUploads",
        lambda rsm: rsm.delete_log_segment_data(a_segment()),
    ),
}


@pytest.fixture(scope="module")
def rsm(s3: S3Endpoint) -> Iterator[tuple[ObjectRemoteStorageManager, HttpProxy]]:
    """Behind a proxy; one for all tests."""
    with (
        HttpProxy(s3.endpoint, s3_operation) as proxy,
        rsm_behind(proxy, settings_for(s3), retries=0) as manager,
    ):
        copied(manager, Files(b"log"))
        yield manager, proxy


@pytest.mark.parametrize("fault", NOT_A_LIST.values(), ids=list(NOT_A_LIST))
@pytest.mark.parametrize(("operation", "listing"), LISTINGS.values(), ids=list(LISTINGS))
def test_a_listing_that_is_none_is_retriable_and_may_be_repeated(
    rsm: tuple[ObjectRemoteStorageManager, HttpProxy],
    operation: str,
    listing: Listing,
    fault: Fault,
) -> None:
    manager, proxy = rsm
    proxy.faults.add(fault, operation=operation)
    with pytest.raises(RetriableRemoteStorageError):
        listing(manager)
    listing(manager)
