"""Kill or stop the process at a named place: SEDIMENT_FAILPOINT=NAME[:PASSAGE[:SIGNAL]]."""

import itertools
import os
import signal
import threading

FAILPOINTS: dict[str, str] = {
    "copy.started_registered": "RLM registered COPY_SEGMENT_STARTED and sent no byte yet.",
    "copy.some_bytes_sent": "RLM sent a chunk of a segment; RSM has not answered.",
    "copy.bytes_sent": "RLM has RSM's custom metadata; COPY_SEGMENT_FINISHED is not registered.",
    "copy.finished_registered": "RLM registered COPY_SEGMENT_FINISHED and has not noted it yet.",
    "trim.recorded": "RLMM has the trims of a pass; the broker was sent nothing yet.",
    "trim.checked": "RLM has read the leader epochs again; DeleteRecords goes out next.",
    "index_cache.file_created": "RLM created an unfinished file of its index cache.",
    "index_cache.index_written": "RLM wrote such a file; it does not have its name yet.",
    "index_cache.file_renamed": "RLM gave such a file its name, and has not counted it yet.",
    "cleanup.delete_started": "RLM registered DELETE_SEGMENT_STARTED of its own dangling copy.",
    "cleanup.objects_deleted": "RSM deleted a dangling copy; DELETE_SEGMENT_FINISHED is to come.",
    "gap.recorded": "RLMM has a LOST_BEFORE_COPY gap; RLM has not reported it yet.",
    "deletion.log_start_raised": "The log start is raised; no segment is marked yet.",
    "deletion.marked_some": "Some segments are DELETE_SEGMENT_STARTED; none is deleted yet.",
    "deletion.objects_deleted": "RSM deleted a batch; DELETE_SEGMENT_FINISHED is to come.",
    "deletion.confirmed_some": "A batch of segments is DELETE_SEGMENT_FINISHED.",
    "removal.partition_started": "DELETE_PARTITION_STARTED is registered; segments are there.",
    "removal.segments_gone": "All segments are gone; DELETE_PARTITION_FINISHED is to come.",
    "removal.partition_finished": "DELETE_PARTITION_FINISHED is registered and not noted yet.",
    "sweep.planned": "A sweep wrote its plan down; nothing is marked yet.",
    "sweep.marked": "A sweep marked what it planned; none of that is deleted yet.",
    "sweep.deleted": "A sweep deleted what it marked; partitions and the report are to come.",
    "export.kept": "An export keeps its offsets from retention; it has not read any yet.",
    "export.committed": "An export committed some offsets of a partition; others are to come.",
    "replacement.copied": "A segment's other copy is whole; RLMM does not know it yet.",
    "rewrap.some": "Some data keys of a topic are rewrapped; others and its record are to come.",
    "restore.segment": "A restore wrote a segment; others are to come.",
    "restore.recorded": "The checkpoints have a restored log, which does not have its name yet.",
    "rsm.upload_begun": "RSM began the upload of the log object; the store has no part of it.",
    "rsm.part_written": "RSM wrote a part of the log object; its upload is not complete.",
    "rsm.log_written": "RSM wrote the log object; indexes and manifest are to come.",
    "rsm.indexes_written": "RSM wrote log and indexes; the manifest is to come.",
    "rsm.manifest_written": "RSM wrote the manifest and has not answered yet.",
    "rsm.delete_some": "RSM deleted some objects of a segment, not all.",
    "rlmm.before_commit": "RLMM made a change and has not committed it.",
    "rlmm.after_commit": "RLMM committed a change and has not answered yet.",
}

_armed, _nth, _signal = f"{os.environ.get('SEDIMENT_FAILPOINT', '')}::".split(":")[:3]
_passes = itertools.count(1)


if _armed and _armed not in FAILPOINTS:
    raise SystemExit(
        f"SEDIMENT_FAILPOINT: unknown failpoint {_armed!r}; use one of {', '.join(FAILPOINTS)}"
    )


def failpoint(name: str) -> None:
    """Mark the place `name` of FAILPOINTS; kill or stop the process here if armed."""
    if name == _armed and next(_passes) == int(_nth or 1):
        # To this thread, which goes no step further; the others stop or end with it.
        signal.pthread_kill(threading.get_ident(), signal.Signals[f"SIG{_signal or 'KILL'}"])
