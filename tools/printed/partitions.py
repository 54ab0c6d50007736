"""Describe what the commands about one partition print."""

from services.api.offset_queries import SpecialTime
from services.api.remote_log_manager import PartitionRole, RecordSource
from services.client.records import RecordKind
from services.interop.metadata_fold import Drop
from services.rlm.copy.ship import ShipOutcome
from services.rlm.kafka_log.log_dir import SkippedFolder
from tools.printed.fields import (
    boolean,
    fields,
    id_of,
    integer,
    list_of,
    nullable,
    one_of,
    text,
    time_ms,
)
from tools.printed.shared import EVENT, GAP, PARTITION, PROBLEM, PROBLEMS, SEGMENT, Document

_CHANGED = fields(
    "A change of a partition.",
    PARTITION
    | {
        "applied": boolean("Whether this call changed something."),
        "revision": integer("The partition's revision afterwards."),
    },
)

_SHIP = fields(
    "One copy pass.",
    {
        "outcome": one_of(
            ShipOutcome,
            "DONE: all that is rolled is in the tier. PARTIAL: something is blocked. "
            "FAILED: no partition is complete.",
        ),
        "partitions": list_of(
            fields(
                "A partition of the log directories.",
                PARTITION
                | {
                    "copied_segments": integer("Segments that this run copied."),
                    "copied_bytes": integer("The bytes of their log files."),
                    "present_segments": integer("Segments that were in the tier before."),
                    "present_bytes": integer("The bytes of their log files."),
                    "blocked_segments": integer("Segments that problems block."),
                    "unsettled_segments": integer(
                        "Segments that the broker may still change: above the high watermark, or "
                        "with an open transaction."
                    ),
                    "settled_before_offset": nullable(
                        integer("The offset before which all is settled; null if unknown.")
                    ),
                    "will_settle": boolean("Whether a running broker will settle the others."),
                    "cleaned_attempts": integer("Unfinished copies that this run deleted."),
                    "known_gaps": list_of(GAP, "The gaps, including those of earlier runs."),
                    "problems": PROBLEMS,
                },
            ),
            "The partitions.",
        ),
        "log_dir_problems": list_of(
            fields("A problem.", PROBLEM), "Folders and files that belong to no partition."
        ),
        "skipped_folders": fields(
            "How many folders of partitions are not copied, by the reason.",
            {each.name: integer(f"Folders {each.value}.") for each in SkippedFolder},
        ),
    },
)

_FETCH = fields(
    "A record. Of key and key_base64 one is there; so with value.",
    PARTITION
    | {
        "offset": integer("The record's offset."),
        "timestamp_ms": time_ms("The record's time; -1 if it has none."),
        "key?": nullable(text("The key as text; null if it is null.")),
        "key_base64?": text("The key, if it is not UTF-8."),
        "value?": nullable(text("The value as text; null if it is null.")),
        "value_base64?": text("The value, if it is not UTF-8."),
        "headers": list_of(
            fields(
                "A header.",
                {
                    "name": text("Its name."),
                    "value?": nullable(text("Its value as text; null if it is null.")),
                    "value_base64?": text("Its value, if it is not UTF-8."),
                },
            ),
            "The headers, in their order.",
        ),
        "leader_epoch": integer("The leader epoch of its batch."),
        "source": nullable(one_of(RecordSource, "Where it was read from.")),
        "kind": one_of(RecordKind, "What it is to a consumer of transactions."),
        "missing_before?": fields(
            "The offsets right before it that no batch has, lost or compacted.", GAP["properties"]
        ),
    },
)

_OFFSETS = fields(
    "An offset of the log.",
    PARTITION
    | {
        "of": text(
            f"The place: {', '.join(each.name.lower() for each in SpecialTime)}, or the --time "
            "as it was given."
        ),
        "offset": integer("The offset; -1 if there is none."),
        "leader_epoch": nullable(integer("The leader epoch of that offset; null if unknown.")),
        "timestamp_ms": time_ms("The time of the record; -1 if it does not matter."),
    },
)

_SEGMENTS = fields(
    "A segment in the tier.",
    PARTITION
    | SEGMENT
    | {
        "broker_id": integer("The broker that copied it."),
        "broker_leader_epoch": nullable(integer("The leader epoch that it was copied under.")),
        "txn_idx_empty": boolean("Whether it has no aborted transactions."),
        "kept_until_ms?": time_ms("Until when its objects stay; with --kept."),
    },
)

_DESCRIPTION = fields(
    "A partition as an RLM knows it.",
    PARTITION
    | {
        "leader_id": integer("The broker that leads it."),
        "leader_epoch": integer("The leader epoch that RLM copies under."),
        "log_start_offset": integer("The first readable offset, in the tier or here."),
        "local_log_start_offset": integer("The first local offset."),
        "last_stable_offset": integer("The last stable offset."),
        "log_end_offset": integer("The offset that the next record will get."),
        "copied_through_offset": integer("The last copied offset; -1 if nothing is copied."),
        "local_segments": integer("Local segments, the active one included."),
        "local_size_bytes": integer("The bytes of their log files."),
        "lag_segments": integer("Rolled segments that are not in the tier."),
        "lag_bytes": integer("The bytes of their log files."),
        "remote_segments": integer("Finished segments in the tier."),
        "remote_size_bytes": integer("The bytes of their log files."),
        "problems": PROBLEMS,
        "role": nullable(one_of(PartitionRole, "The broker's role; null if it has none.")),
        "reader_id": nullable(
            integer("The broker whose RLM consumers should read from; null if it may be any.")
        ),
    },
)

_DRAIN = fields(
    "RLMs that were drained, or whose drain was cancelled.",
    {
        "rlms": list_of(
            fields(
                "An RLM.",
                {
                    "address": text("HOST:PORT."),
                    "drained": boolean("Whether it starts no copies and deletions."),
                    "active_copies": integer("Partitions with an active copy pass."),
                    "active_deletions": integer("Partitions with an active pass that deletes."),
                },
            ),
            "The RLMs.",
        )
    },
)

_METADATA = (
    fields(
        "A record of Kafka's metadata topic. Kafka's own fields, by the kind of the metadata.",
        {
            "partition": integer("The partition of the metadata topic; -1 if it is not known."),
            "offset": integer("The record's offset; of a snapshot, up to where it was made."),
            "key": nullable(text("The record's key; null in topics that are not compacted.")),
            "kind": one_of(
                [
                    "RemoteLogSegmentMetadata",
                    "RemoteLogSegmentMetadataUpdate",
                    "RemotePartitionDeleteMetadata",
                    "SegmentSnapshot",
                    "Tombstone",
                ],
                "Kafka's class; a Tombstone has no further fields.",
            ),
            "topic_id_partition?": fields("The partition of the user's topic.", PARTITION),
            "segment_id?": id_of("the segment"),
            "start_offset?": integer("The segment's first offset."),
            "end_offset?": nullable(integer("Its last offset, inclusive.")),
            "max_timestamp_ms?": time_ms("The time of its latest record; -1 if it has none."),
            "broker_id?": integer("The broker that wrote the event."),
            "event_timestamp_ms?": time_ms("When it wrote it."),
            "segment_leader_epochs?": list_of(
                list_of(integer("The epoch, or its first offset."), "An epoch and its start."),
                "The segment's leader epochs.",
            ),
            "segment_size_in_bytes?": integer("The size of its .log file."),
            "custom_metadata?": nullable(text("What the RemoteStorageManager returned, in hex.")),
            "state?": text("The state of the segment, or of the partition's deletion."),
            "txn_idx_empty?": boolean("Whether it has no transaction index."),
            "version?": integer("The version of the message; 1 has what its key is made of."),
            "broker_leader_epoch?": nullable(
                integer("The epoch of the leader that wrote the event; null in version 0.")
            ),
        },
    ),
    fields(
        "A line of a file _rlmm_committed_offsets.",
        {
            "partition": integer("The partition of the metadata topic."),
            "offset": integer("Up to where the broker had read it."),
        },
    ),
)

_IMPORTED = fields(
    "An import of a metadata topic.",
    {
        "cluster_id": text("The id of the cluster."),
        "metadata_topic_id": id_of("the metadata topic"),
        "records": integer("Records that were read."),
        "imported": integer("New segments."),
        "moved": integer("Changes of segments and of deletions of partitions."),
        "repeated": integer("What was so before."),
        "not_selected": integer("Records of topics that were not asked for."),
        "dropped": fields(
            "What was dropped, by kind.", {why.name: integer(f"{why.value}.") for why in Drop}
        ),
        "examples": list_of(
            fields(
                "A dropped record.",
                {
                    "why": one_of([why.name for why in Drop], "Its kind."),
                    "partition": integer("The partition of the metadata topic."),
                    "offset": integer("Its offset."),
                    "what": text("The segment or partition, and what was wrong."),
                },
            ),
            "The first ones of each kind.",
        ),
        "log_starts": integer("Log starts that were set."),
        "lag": integer("Records that were not imported yet."),
    },
)

_EXPORTED = fields(
    "An export to a metadata topic.",
    {
        "cluster_id": text("The id of the cluster."),
        "metadata_topic_id": id_of("the metadata topic"),
        "partitions": integer("Partitions whose changes were compared with the topic."),
        "added": integer("Records that add a segment."),
        "moved": integer("Records that move one."),
        "partition_deletes": integer("Records of deletions of partitions."),
        "tombstones": integer("Tombstones of keys."),
    },
)

DOCUMENTS = (
    Document(("metadata print",), _METADATA, is_listed=True),
    Document(("metadata import",), (_IMPORTED,)),
    Document(("metadata export",), (_EXPORTED,)),
    Document(("drain",), (_DRAIN,)),
    Document(("partitions",), (_DESCRIPTION,), is_listed=True),
    Document(("partitions undelete", "partitions reset-epoch"), (_CHANGED,)),
    Document(("segments",), (_SEGMENTS,), is_listed=True),
    Document(("events",), (fields("A change of a partition.", PARTITION | EVENT),), is_listed=True),
    Document(("fetch",), (_FETCH,), is_listed=True),
    Document(("offsets",), (_OFFSETS,), is_listed=True),
    Document(("ship",), (_SHIP,)),
)
