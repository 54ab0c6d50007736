"""Hand out URLs with which clients read logs from the store themselves."""

import logging

from prometheus_client import Counter

from services.api.calls import current_call
from services.api.errors import CorruptSegmentError, DirectReadRefusedError, NotServedError
from services.api.imported_segments import is_imported
from services.api.remote_storage_manager import OpenedLogSegment
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import within
from services.rsm.deadline import ByteRate
from services.rsm.layout import CustomMetadata, Manifest
from services.rsm.locations import Location, Locations

DIRECT_READS = Counter(
    "sediment_rsm_direct_reads", "URLs that OpenLogSegment handed out; each is for one log."
)
DIRECT_READ_BYTES = Counter(
    "sediment_rsm_direct_read_bytes",
    "Sizes of the logs for which OpenLogSegment handed out URLs. RSM does not see how much of them "
    "is read, or how often.",
)
_log = logging.getLogger(__name__)


class DirectReads:
    """Open logs for direct reads, one manifest read and no other request each. Thread-safe."""

    def __init__(self, locations: Locations, valid_s: int, rate: ByteRate) -> None:
        """Set for how long URLs are valid, s; 0: direct reads are off."""
        self._locations = locations
        self._valid_s = valid_s
        self._rate = rate

    def open(self, metadata: RemoteLogSegmentMetadata) -> OpenedLogSegment:
        if not self._valid_s:
            text = "direct reads are off; stream the log, or set RSM_DIRECT_READS=true"
            raise NotServedError(text)
        if is_imported(metadata.custom_metadata):
            segment = metadata.remote_log_segment_id
            raise DirectReadRefusedError(f"{segment} was imported; stream the log")
        with within("metadata"):
            location, custom = self._locations.find(metadata)
        if custom.transformed:
            raise DirectReadRefusedError(
                f"{metadata.remote_log_segment_id}: {location} has it compressed or encrypted; "
                "stream the log"
            )
        manifest = _manifest_of(location, metadata, custom)
        self._rate.charge(manifest.log.size_bytes)  # The whole log, however much is read.
        # Reading the manifest has shown that the store accepts the credentials that sign this.
        signed = location.backend.presign(
            location.keys(metadata).log(custom.attempt), self._valid_s
        )
        if signed is None:
            raise DirectReadRefusedError(
                f"{metadata.remote_log_segment_id} is in {location}, which gives clients no URLs; "
                "stream the log"
            )
        _record(metadata, manifest.log.size_bytes, signed.valid_s)
        return OpenedLogSegment(signed.url, signed.valid_s * 1000, manifest.log)


def _manifest_of(
    location: Location, metadata: RemoteLogSegmentMetadata, custom: CustomMetadata
) -> Manifest:
    """Read the manifest of a copy: without the digests in it nothing can be verified."""
    try:
        return location.read_manifest_of(location.keys(metadata), custom)
    except CorruptSegmentError as e:
        segment = metadata.remote_log_segment_id
        raise CorruptSegmentError(
            f"{segment}: {e}; verify the topic's segments with `sediment scrub --topic "
            f"{segment.topic_id_partition.topic}`"
        ) from e


def _record(metadata: RemoteLogSegmentMetadata, size_bytes: int, valid_s: int) -> None:
    """Count and log that a URL was handed out, and to whom; never the URL."""
    DIRECT_READS.inc()
    DIRECT_READ_BYTES.inc(size_bytes)
    call, segment = current_call(), str(metadata.remote_log_segment_id)
    # Within the format string each segment and reader has a limit of lines of its own.
    _log.info(
        f"direct read of {segment} granted to {call.actor}",
        extra={
            "segment": segment,
            "actor": call.actor,
            "request_id": call.request_id,
            "valid_s": valid_s,
        },
    )
