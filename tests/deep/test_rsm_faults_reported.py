"""RSM that repeats no request, and one that goes wrong: the right error, and nothing left behind.

Each row is one request of a copy, a read or a delete, and each column what happens to it once.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import pytest

from services.api.errors import CorruptSegmentError, RetriableRemoteStorageError
from services.api.segment_objects import (
    ObjectLocation,
    ObjectQuery,
    all_multipart_uploads,
    all_segment_objects,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.local.seaweedfs import S3Endpoint
from services.rsm.factory import build_backend
from services.rsm.layout import segment_keys
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import (
    MIB,
    Files,
    a_segment,
    copied,
    fetched,
    some_bytes,
)
from tests.contract.rsm_over_s3 import PART as PART_BYTES
from tests.contract.rsm_over_s3 import everything_in, settings_for
from tests.contract.rsm_through_faults import SILENCE_MS, rsm_behind
from tests.harness.faults import (
    Answer,
    BlackHole,
    Corrupt,
    Cut,
    Direction,
    Fault,
    HalfClose,
    Reset,
    Stall,
    Truncate,
)
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy

SIZE = PART_BYTES + 1000
"""Of a log of two parts, the second of them small."""

FILES = Files(some_bytes(SIZE))


@dataclass(frozen=True)
class Step:
    """A request of a copy of FILES: the first of its operation after `skip` others."""

    operation: str
    skip: int = 0


BEGIN = Step("CreateMultipartUpload")
PART = Step("UploadPart")
COMPLETE = Step("CompleteMultipartUpload")
INDEXES = Step("PutObject")
MANIFEST = Step("PutObject", skip=1)

Faults = Mapping[str, Fault]

REFUSED: Faults = {
    "503": Answer(503),
    "500": Answer(500),
    "reset": Reset(None, Direction.REQUEST),
    "cut": Cut(None, Direction.REQUEST),
}
"""The store never sees the request."""

ANSWERED: Faults = {name: REFUSED[name] for name in ("503", "500")}
"""The store says that it did not do what was asked."""

SILENT: Faults = {"black hole": BlackHole()}

SIGN_IN = Answer(200, page="<html><body>Please sign in</body></html>")

NOT_THE_STORE: Faults = {
    "200 html": SIGN_IN,
    "200 nothing": Answer(200, page=" "),
    "303": Answer(303, page="<html/>", location="/sign-in"),
}
"""A load balancer, say, answers in the store's place."""

BROKEN_REQUEST: Faults = {
    "reset within": Reset(100, Direction.REQUEST),
    "cut within": Cut(100, Direction.REQUEST),
    "wrong byte": Corrupt(100, Direction.REQUEST),
}
"""The store sees some of the body."""

ANSWER_LOST: Faults = {
    "reset answer": Reset(None, Direction.RESPONSE),
    "cut answer": Cut(None, Direction.RESPONSE),
}
"""The store has carried the request out."""

BROKEN_XML: Faults = {
    "reset within answer": Reset(20, Direction.RESPONSE),
    "half an answer": Truncate(60),
    "wrong byte of answer": Corrupt(1, Direction.RESPONSE),
}
"""The store has carried the request out, and says so in XML that does not arrive as it was."""


def cases(steps: Mapping[str, Step], *faults: Faults) -> list[object]:
    return [
        pytest.param(step, fault, id=f"{name}, {what}")
        for name, step in steps.items()
        for group in faults
        for what, fault in group.items()
    ]


Left = Callable[[RemoteLogSegmentMetadata], Collection[str]]


@pytest.fixture(scope="module")
def settings(s3: S3Endpoint) -> RsmSettings:
    return settings_for(s3, {"verify_reads": "always"})


@pytest.fixture(scope="module")
def left(settings: RsmSettings) -> Left:
    """What the store has of a segment, and the unfinished uploads of it."""
    backend = build_backend(settings)

    def left_of(metadata: RemoteLogSegmentMetadata) -> Collection[str]:
        return everything_in(backend, segment_keys(settings.prefix, metadata).prefix)()

    return left_of


@pytest.fixture(scope="module")
def through(s3: S3Endpoint) -> Iterator[HttpProxy]:
    with HttpProxy(s3.endpoint, s3_operation) as running:
        yield running


@pytest.fixture(scope="module")
def rsm(through: HttpProxy, settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
    """One for all tests: to be ready takes more requests than any of them. It is patient, as most
    of what it is asked must succeed."""
    with rsm_behind(through, settings, retries=0) as manager:
        yield manager


@pytest.fixture(scope="module")
def impatient(through: HttpProxy, settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
    with rsm_behind(through, settings, retries=0, read_timeout_ms=SILENCE_MS) as manager:
        yield manager


@dataclass(frozen=True)
class Faulty:
    """RSM and the proxy on its way to the store; `left` lists what the store has of a segment."""

    rsm: ObjectRemoteStorageManager
    impatient: ObjectRemoteStorageManager
    proxy: HttpProxy
    left: Left

    def meeting(self, fault: Fault) -> ObjectRemoteStorageManager:
        """Return whom to ask for what meets a fault; where that is silence, who soon gives up."""
        return self.impatient if isinstance(fault, BlackHole | Stall) else self.rsm


@pytest.fixture
def faulty(
    through: HttpProxy,
    rsm: ObjectRemoteStorageManager,
    impatient: ObjectRemoteStorageManager,
    left: Left,
) -> Iterator[Faulty]:
    through.faults.add(SIGN_IN, operation=s3_operation("GET", "/sign-in"), times=None)
    yield Faulty(rsm, impatient, through, left)
    through.faults.clear()


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        *cases({"begin": BEGIN}, REFUSED, NOT_THE_STORE, ANSWER_LOST, BROKEN_XML),
        *cases({"part": PART}, REFUSED, NOT_THE_STORE, BROKEN_REQUEST, ANSWER_LOST),
        *cases({"complete": COMPLETE}, REFUSED, NOT_THE_STORE, BROKEN_REQUEST),
        *cases({"complete": COMPLETE}, ANSWER_LOST, BROKEN_XML),
        *cases({"indexes": INDEXES}, REFUSED, NOT_THE_STORE, BROKEN_REQUEST, ANSWER_LOST),
        *cases({"manifest": MANIFEST}, ANSWERED, {"wrong byte": BROKEN_REQUEST["wrong byte"]}),
        *cases({"begin": BEGIN, "part": PART, "complete": COMPLETE}, SILENT),
        *cases({"part": PART}, {"silence within": Stall(100, Direction.REQUEST)}),
    ],
)
def test_a_copy_is_retriable_leaves_nothing_and_may_be_repeated(
    faulty: Faulty, step: Step, fault: Fault
) -> None:
    metadata = a_segment(SIZE)
    faulty.proxy.faults.add(fault, operation=step.operation, skip=step.skip)
    with pytest.raises(RetriableRemoteStorageError):
        copied(faulty.meeting(fault), FILES, metadata)
    assert not faulty.left(metadata)
    assert fetched(faulty.rsm, copied(faulty.rsm, FILES, metadata)) == FILES.log


@pytest.mark.parametrize(
    ("step", "fault"),
    cases(
        {"manifest": MANIFEST},
        {name: fault for name, fault in REFUSED.items() if name not in ANSWERED},
        NOT_THE_STORE,
        {name: fault for name, fault in BROKEN_REQUEST.items() if name != "wrong byte"},
        SILENT,
    ),
)
def test_copy_with_an_uncertain_manifest_is_retriable_and_keeps_its_objects(
    faulty: Faulty, step: Step, fault: Fault
) -> None:
    metadata = a_segment(SIZE)
    faulty.proxy.faults.add(fault, operation=step.operation, skip=step.skip)
    with pytest.raises(RetriableRemoteStorageError):
        copied(faulty.meeting(fault), FILES, metadata)
    assert len(faulty.left(metadata)) == 2
    faulty.rsm.delete_log_segment_data(metadata)
    assert not faulty.left(metadata)


@pytest.mark.parametrize("fault", ANSWER_LOST.values(), ids=list(ANSWER_LOST))
def test_copy_with_a_written_but_unanswered_manifest_counts(faulty: Faulty, fault: Fault) -> None:
    faulty.proxy.faults.add(fault, operation=MANIFEST.operation, skip=MANIFEST.skip)
    metadata = copied(faulty.rsm, FILES)
    assert fetched(faulty.rsm, metadata) == FILES.log
    assert len(faulty.left(metadata)) == 3


@pytest.mark.parametrize(
    "fault",
    [
        *REFUSED.values(),
        *NOT_THE_STORE.values(),
        *ANSWER_LOST.values(),
        BlackHole(),
        Cut(2 * MIB, Direction.RESPONSE),
        Reset(2 * MIB, Direction.RESPONSE),
        HalfClose(2 * MIB, Direction.RESPONSE),
        Stall(2 * MIB, Direction.RESPONSE),
        Truncate(2 * MIB),
    ],
    ids=str,
)
def test_a_read_is_retriable_and_may_be_repeated(faulty: Faulty, fault: Fault) -> None:
    reader, metadata = faulty.meeting(fault), copied(faulty.rsm, FILES)
    assert fetched(reader, metadata, end=0)  # The digests are known: the next GET is of the log.
    faulty.proxy.faults.add(fault, operation="GetObject")
    with pytest.raises(RetriableRemoteStorageError):
        fetched(reader, metadata)
    assert fetched(faulty.rsm, metadata) == FILES.log


@pytest.mark.parametrize("fault", NOT_THE_STORE.values(), ids=list(NOT_THE_STORE))
def test_a_page_in_place_of_a_manifest_is_retriable(
    faulty: Faulty, settings: RsmSettings, fault: Fault
) -> None:
    metadata = copied(faulty.rsm, FILES)
    manifest = ObjectLocation(1, segment_keys(settings.prefix, metadata).manifest)
    faulty.proxy.faults.add(fault, operation="GetObject")
    with pytest.raises(RetriableRemoteStorageError):
        faulty.rsm.objects.read_segment_manifest(manifest)
    assert faulty.rsm.objects.read_segment_manifest(manifest).log_size_bytes == SIZE
    faulty.proxy.faults.add(fault, operation="GetObject", skip=1)  # Of a read that is verified.
    with pytest.raises(RetriableRemoteStorageError):
        fetched(faulty.rsm, metadata)
    assert fetched(faulty.rsm, metadata) == FILES.log


@pytest.mark.parametrize("fault", NOT_THE_STORE.values(), ids=list(NOT_THE_STORE))
def test_a_page_in_answer_to_the_check_of_the_manifest_removes_nothing(
    faulty: Faulty, fault: Fault
) -> None:
    metadata = a_segment(SIZE)
    faulty.proxy.faults.add(
        Cut(None, Direction.RESPONSE), operation=MANIFEST.operation, skip=MANIFEST.skip
    )
    faulty.proxy.faults.add(fault, operation="GetObject")
    with pytest.raises(RetriableRemoteStorageError):
        copied(faulty.rsm, FILES, metadata)
    assert len(faulty.left(metadata)) == 3
    assert fetched(faulty.rsm, copied(faulty.rsm, FILES, metadata)) == FILES.log


@pytest.mark.parametrize("fault", NOT_THE_STORE.values(), ids=list(NOT_THE_STORE))
def test_a_page_in_place_of_the_marker_closes_nothing(
    faulty: Faulty, through: HttpProxy, s3: S3Endpoint, fault: Fault
) -> None:
    with rsm_behind(through, settings_for(s3, {"deployment_id": "ours"}), retries=0) as marked:
        faulty.proxy.faults.add(fault, operation="GetObject")
        with pytest.raises(RetriableRemoteStorageError):
            marked.check()
        assert fetched(marked, copied(marked, FILES)) == FILES.log


@pytest.mark.parametrize("place", [0, 5 * MIB - 1, SIZE - 1])
def test_a_read_of_a_wrong_byte_is_corrupt_and_may_be_repeated(faulty: Faulty, place: int) -> None:
    metadata = copied(faulty.rsm, FILES)
    assert fetched(faulty.rsm, metadata) == FILES.log
    faulty.proxy.faults.add(Corrupt(place, Direction.RESPONSE), operation="GetObject")
    with pytest.raises(CorruptSegmentError):
        fetched(faulty.rsm, metadata)
    assert fetched(faulty.rsm, metadata) == FILES.log


@pytest.mark.parametrize(
    "fault",
    [
        *REFUSED.values(),
        *NOT_THE_STORE.values(),
        Answer(200, page="<DeleteResult/>"),
        *BROKEN_REQUEST.values(),
        *ANSWER_LOST.values(),
        *BROKEN_XML.values(),
        *SILENT.values(),
    ],
    ids=str,
)
def test_a_delete_is_retriable_and_may_be_repeated(faulty: Faulty, fault: Fault) -> None:
    metadata = copied(faulty.rsm, Files(b"log"))
    faulty.proxy.faults.add(fault, operation="DeleteObjects")
    with pytest.raises(RetriableRemoteStorageError):
        faulty.meeting(fault).delete_log_segment_data(metadata)
    faulty.rsm.delete_log_segment_data(metadata)
    assert not faulty.left(metadata)


NOT_A_LIST: dict[str, Fault] = {
    "page": SIGN_IN,
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


@pytest.mark.parametrize("fault", NOT_A_LIST.values(), ids=list(NOT_A_LIST))
@pytest.mark.parametrize(("operation", "listing"), LISTINGS.values(), ids=list(LISTINGS))
def test_a_listing_that_is_none_is_retriable_and_may_be_repeated(
    faulty: Faulty, operation: str, listing: Listing, fault: Fault
) -> None:
    copied(faulty.rsm, Files(b"log"))
    faulty.proxy.faults.add(fault, operation=operation)
    with pytest.raises(RetriableRemoteStorageError):
        listing(faulty.rsm)
    listing(faulty.rsm)
