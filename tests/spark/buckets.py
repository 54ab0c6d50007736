"""Fill a bucket with one of everything that a check of the store can find."""

from collections.abc import Sequence
from io import BytesIO

from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.rsm.layout import segment_keys
from tests.contract.remote_storage_manager_contract import Files
from tests.harness.tier import SIZE_BYTES, Tier, a_topic, segment

_ATTEMPT = "a" * 16


class Bucket:
    """The bucket of a tier, to be changed behind its back."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._client = tier.s3.client()

    def put(self, key: str, content: bytes) -> None:
        self._client.put_object(self._tier.bucket, key, BytesIO(content), len(content))

    def get(self, key: str) -> bytes:
        with self._client.get_object(self._tier.bucket, key) as answer:
            return answer.read()

    def keys(self, of: RemoteLogSegmentMetadata, ending: str = "") -> list[str]:
        """Return the keys of a segment's objects, those that end so."""
        listed = self._client.list_objects(
            self._tier.bucket, prefix=segment_keys("", of).prefix, recursive=True
        )
        names = sorted(str(each.object_name) for each in listed)
        return [name for name in names if name.endswith(ending)]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._client.remove_object(self._tier.bucket, key)


def with_every_anomaly(tier: Tier) -> list[TopicIdPartition]:
    """Fill two partitions of a topic, and objects of unknown ones; return the two."""
    bucket, partitions = Bucket(tier), a_topic(partitions=2)
    tp = partitions[0]
    tier.fill(partitions[1], 4)
    (
        flipped,
        without_log,
        without_manifest,
        short,
        short_indexes,
        two_attempts,
        deleted,
        other,
    ) = tier.fill(tp, 8)
    bucket.put(bucket.keys(flipped, ".log")[0], b"\1" * SIZE_BYTES)
    bucket.delete(bucket.keys(without_log))
    bucket.delete(bucket.keys(without_manifest, ".manifest"))
    [log] = bucket.keys(short, ".log")
    bucket.put(log, bytes(SIZE_BYTES - 1))
    [indexes] = bucket.keys(short_indexes, ".indexes")
    bucket.put(indexes, bucket.get(indexes)[:-1])
    keys = segment_keys("", two_attempts)
    bucket.put(keys.log(_ATTEMPT), b"left behind")
    keys = segment_keys("", other)
    counting = bucket.keys(other, ".log")[0].split(".")[1]
    bucket.put(
        keys.manifest, bucket.get(keys.manifest).replace(counting.encode(), _ATTEMPT.encode())
    )
    bucket.put(keys.indexes(_ATTEMPT), b"another copy")
    for state in ("DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"):
        deleted = tier.move(deleted, RemoteLogSegmentState[state])
    tier.rlmm.add_remote_log_segment_metadata(segment(partitions[1], 1))
    started = segment(tp, 10)
    tier.rlmm.add_remote_log_segment_metadata(started)
    bucket.put(segment_keys("", started).log(_ATTEMPT), b"under way")
    bucket.put(segment_keys("", segment(tp, 11)).log(_ATTEMPT), b"never finished")
    bucket.put(segment_keys("", segment(tp, 12)).manifest, b"no manifest")
    bytes_of = Files(bytes(SIZE_BYTES))
    for unknown in (segment(tp, 13), segment(a_topic()[0], 0)):
        tier.rsm.copy_log_segment_data(unknown, bytes_of.data())
    return partitions
