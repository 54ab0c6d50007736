"""Fetch and look up every segment in a loop, in a pod with the project's image.

It imports nothing of the tests: a pod runs this file's text. It prints a line when the first round
is done, ends when its standard input ends, and then prints counts and failures as a line of JSON.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from itertools import cycle

from services.api.errors import RemoteStorageError
from services.api.remote_log_metadata_manager import all_partitions, all_segments
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.common.client_security import SecurityOptions
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_CLIENTS = 4
"""Each with connections of its own, which a Service spreads over the pods."""

_PAUSE_S = 0.02


def main() -> None:
    ended = threading.Event()
    loops = [Loop(ended) for _ in range(_CLIENTS)]
    threads = [threading.Thread(target=loop.run) for loop in loops]
    for thread in threads:
        thread.start()
    for loop in loops:
        loop.has_begun.wait()
    _say("begun")
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()
    calls = sum(loop.calls for loop in loops)
    failures = [failure for loop in loops for failure in loop.failures]
    _say(json.dumps({"calls": calls, "failures": failures}))


class Loop:
    """One client."""

    def __init__(self, ended: threading.Event) -> None:
        self._ended = ended
        self.has_begun = threading.Event()
        self.calls = 0
        self.failures: list[str] = []

    def run(self) -> None:
        """Call until the end; whatever ends it before is a failure, and holds up no other."""
        try:
            self._call_until_ended()
        except Exception as e:  # noqa: BLE001 - else it would end unseen, in a thread
            self.failures.append(f"client ended: {e!r}")
        finally:
            self.has_begun.set()

    def _call_until_ended(self) -> None:
        rsm, rlmm = os.environ["SEDIMENT_RSM"], os.environ["SEDIMENT_RLMM"]
        security = SecurityOptions.from_environment(os.environ)
        with (
            open_channel(rsm, security.security_for(rsm)) as rsm_channel,
            open_channel(rlmm, security.security_for(rlmm)) as rlmm_channel,
        ):
            store = RemoteStorageManagerClient(rsm_channel, rsm)
            metadata = RemoteLogMetadataManagerClient(rlmm_channel, rlmm)
            segments = list(_segments(metadata))
            if not segments:
                raise LookupError("RLMM has no finished segment")
            for segment in cycle(segments):
                self._fetch(store, segment)
                self._look_up(metadata, segment)
                self.has_begun.set()
                if self._ended.wait(_PAUSE_S):
                    return

    def _fetch(self, store: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> None:
        self.calls += 1
        try:
            size_bytes = sum(len(chunk) for chunk in store.fetch_log_segment(segment, 0))
        except RemoteStorageError as e:
            self.failures.append(f"fetch: {e!r}")
        else:
            if size_bytes != segment.segment_size_in_bytes:
                self.failures.append(f"fetch: {size_bytes} bytes of {segment}")

    def _look_up(
        self, metadata: RemoteLogMetadataManagerClient, segment: RemoteLogSegmentMetadata
    ) -> None:
        self.calls += 1
        partition = segment.remote_log_segment_id.topic_id_partition
        first = segment.segment_leader_epochs[0]
        epoch, offset = first.leader_epoch, max(first.start_offset, segment.start_offset)
        try:
            found = metadata.remote_log_segment_metadata(partition, epoch, offset)
        except RemoteStorageError as e:
            self.failures.append(f"look-up: {e!r}")
        else:
            if found.value is None:
                self.failures.append(f"look-up: nothing for {segment}")


def _segments(metadata: RemoteLogMetadataManagerClient) -> Iterator[RemoteLogSegmentMetadata]:
    for partition in all_partitions(metadata):
        yield from all_segments(metadata, partition.topic_id_partition, states=[_FINISHED])


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
