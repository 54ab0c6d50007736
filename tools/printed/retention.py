"""Describe what the commands about retention and removal print."""

from services.api.partitions import RemotePartitionDeleteState
from services.api.retention_explained import Standing
from services.api.topic_config import RetentionOwner
from tools.printed.fields import (
    Schema,
    boolean,
    fields,
    id_of,
    integer,
    list_of,
    map_of,
    nullable,
    one_of,
    text,
    time_ms,
)
from tools.printed.shared import (
    ANOMALY,
    EVENT,
    EXPECTED,
    GAP,
    HOLD,
    PARTITION,
    RULE,
    SEGMENT,
    Document,
)


def _due(meaning: str) -> Schema:
    return nullable(fields(meaning, {"at_ms": time_ms("When.")} | RULE))


_STANDING = fields(
    "What retention does with a segment.",
    {
        "segment": fields("The segment.", SEGMENT),
        "standing": one_of(Standing, "The verdict.", by_name=True),
        "due": _due("When it is deleted; null if the passing of time does not delete it."),
        "once_clear": _due("The same, if no hold and no running copy were in the way."),
        "bytes_missing": nullable(
            integer("How many bytes the partition must grow by until retention.bytes deletes it.")
        ),
        "waits_for": nullable(fields("The earlier segment that must go first.", SEGMENT)),
        "divergence": nullable(
            fields(
                "Where it leaves the lineage.",
                {
                    "leader_epoch": integer("The first leader epoch that differs."),
                    "why": text("The figures."),
                },
            )
        ),
    },
)

_DUE_SEGMENT = fields("A segment that is due.", SEGMENT | RULE)

_EVENT_OR_NULL = nullable(fields("The event of the audit trail; null if there is none.", EVENT))

_EXPLAIN = (
    fields(
        "A partition, if neither a segment nor an offset is named.",
        PARTITION
        | {
            "revision": integer("The partition's revision."),
            "config_revision": integer("The revision of its topic's settings."),
            "read_at_ms": time_ms("When this was read, by the database's clock."),
            "settings": map_of(
                fields(
                    "A setting.",
                    {
                        "value": text("Its value."),
                        "is_set": boolean("Whether it is set for the topic."),
                    },
                ),
                "The settings that decide, by name.",
            ),
            "delete_state": nullable(
                one_of(RemotePartitionDeleteState, "The state of its removal; null if none.")
            ),
            "marked_at_ms": nullable(time_ms("When it was marked for removal.")),
            "log_start_offset": integer("The tier's log start offset."),
            "log_start_raised": _EVENT_OR_NULL,
            "report": nullable(
                fields(
                    "The latest report of its leader's RLM.",
                    {
                        "age_ms": nullable(integer("The age of the report.")),
                        "broker_id": integer("The broker that reported."),
                        "leader_epoch": integer("Its leader epoch."),
                        "log_end_offset": integer("The local log's end."),
                        "lag_bytes": integer("Of rolled segments that are not in the tier."),
                        "only_local_bytes": integer("Of the active one too."),
                        "copied_through_offset": integer("The last copied offset; -1 if none."),
                    },
                )
            ),
            "polled_log": EXPECTED,
            "size_note": text("Why the size is not judged, or how."),
            "oldest": nullable(fields("The oldest segment.", SEGMENT)),
            "due": list_of(_DUE_SEGMENT, "The segments that are due now."),
            "due_bytes": integer("The bytes of their log files."),
            "on_hold": list_of(_DUE_SEGMENT, "The segments that a hold keeps."),
            "next": nullable(_STANDING),
            "gaps": list_of(
                fields(
                    GAP["description"], GAP["properties"] | {"kind": text("Why they are lost.")}
                ),
                "The recorded gaps.",
            ),
            "holds": list_of(HOLD, "What keeps some of its offsets."),
            "notes": list_of(text("A note."), "What was not judged, and why."),
        },
    ),
    fields(
        "A partition that was removed.",
        PARTITION
        | {
            "delete_state": one_of(["removed"], "Always the same."),
            "events": list_of(fields("An event.", EVENT), "Its deletion in the audit trail."),
        },
    ),
    fields(
        "A segment, if one or its offset is named.",
        PARTITION
        | {
            "segment_id": id_of("the segment"),
            "segment": nullable(fields("Its metadata; null if it is gone.", SEGMENT)),
            "since": _EVENT_OR_NULL,
            "verdict": text("The answer in a sentence."),
            "retention": nullable(_STANDING),
            "anomalies": nullable(
                list_of(ANOMALY, "What checks found wrong; null if it may not be seen.")
            ),
            "deletion": _EVENT_OR_NULL,
            "events": list_of(fields("An event.", EVENT), "All that happened to it."),
        },
    ),
)

_RETENTION = fields(
    "What retention would delete of a partition now.",
    PARTITION
    | {
        "revision": integer("The partition's revision."),
        "config_revision": integer("The revision of its topic's settings."),
        "retention_ms": integer("retention.ms; -1 is unlimited."),
        "retention_bytes": integer("retention.bytes; -1 is unlimited."),
        "retention_owner": nullable(one_of(RetentionOwner, "Who deletes; null if not set: RLM.")),
        "hold": nullable(HOLD),
        "log_start_offset": integer("The tier's log start offset."),
        "new_log_start_offset": nullable(
            integer("The log start offset after the deletions; null if it stays.")
        ),
        "report_age_ms": nullable(integer("The age of the leader's report; null if none.")),
        "deletions": list_of(
            fields("A segment.", SEGMENT | RULE), "The segments that would be deleted."
        ),
        "deleted_size_bytes": integer("The bytes of their log files."),
        "waiting": list_of(
            fields("A segment.", SEGMENT | RULE), "Those that only changed settings delete."
        ),
        "waiting_size_bytes": integer("The bytes of their log files."),
        "waits_until_ms": nullable(time_ms("Until when changed settings wait; null if none do.")),
        "polled_log": EXPECTED,
        "notes": list_of(text("A note."), "What was not judged, and why."),
    },
)

_SWEPT = {
    "planned_segments": integer("Segments of the plan."),
    "planned_bytes": integer("The bytes of their log files."),
    "resumed_segments": integer("Those that an earlier run had marked."),
    "deleted_segments": integer("Segments that were deleted."),
    "deleted_bytes": integer("The bytes of their log files."),
    "deleted_by_another_segments": integer("Those that another run deleted meanwhile."),
    "refused_segments": integer("Segments that RLMM or RSM refused to delete."),
    "failed_segments": integer("Segments that another run may delete."),
}

_SWEEP = fields(
    "A sweep; --report writes the same.",
    {
        "job": text("sweep retention or sweep removal."),
        "plan_id": text("The id of the plan, as in the audit trail."),
        "engine": text("What ran it."),
        "apply": boolean("Whether --apply was given."),
        "partitions": list_of(
            fields(
                "A partition.",
                PARTITION
                | {
                    "outcome": text("PLANNED, DONE, REMAINING, REFUSED or SKIPPED."),
                    "error": nullable(text("The first failure; null if none.")),
                    "skipped": nullable(text("Why it was skipped; null if it was not.")),
                    "notes": list_of(text("A note."), "What was not judged, and why."),
                    "log_start_offset": nullable(integer("The log start after the sweep.")),
                    **_SWEPT,
                },
            ),
            "The partitions.",
        ),
        "segments": list_of(
            fields(
                "A segment.",
                PARTITION
                | {
                    "segment_id": id_of("the segment"),
                    "start_offset": integer("Its first offset."),
                    "end_offset": integer("Its last offset, inclusive."),
                    "segment_size_in_bytes": integer("The size of its log file; -1 if unknown."),
                    "reason": text("The rule that deletes it, by name."),
                    "detail": nullable(text("The figures that the rule compared.")),
                    "outcome": text("What became of it."),
                    "error": nullable(text("Why it was not deleted.")),
                    "earlier_plan_id": nullable(text("The sweep that marked it before.")),
                },
            ),
            "The segments, if they are at most 10,000.",
        ),
        "segments_file": nullable(text("The Parquet file that has more segments than that.")),
        "outcome": text("PLANNED, DONE, PARTIAL, REFUSED or FAILED."),
        "error": nullable(
            text("Why the whole plan was refused, or why the sweep failed in a wave; else null.")
        ),
        "started_at_ms": time_ms("When it began."),
        "finished_at_ms": time_ms("When it ended."),
        "totals": fields(
            "The sums.",
            {
                "partitions": integer("All partitions."),
                "skipped_partitions": integer("Those that were skipped."),
                "unfinished_partitions": integer("Those that are not done."),
                **_SWEPT,
            },
        ),
    },
)

DOCUMENTS = (
    Document(("explain",), _EXPLAIN),
    Document(("retention",), (_RETENTION,), is_listed=True),
    Document(("holds", "holds set", "holds end"), (HOLD,), is_listed=True),
    Document(("sweep retention", "sweep removal"), (_SWEEP,)),
)
