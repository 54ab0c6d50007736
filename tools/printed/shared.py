"""Describe what several commands print: the fields of a partition, a segment, an event."""

from dataclasses import dataclass

from services.api.holds import HoldKind
from services.api.operations import AnomalyKind
from services.api.remote_log_manager import ProblemKind
from services.api.retention import DeletionReason
from services.api.segments import RemoteLogSegmentState
from services.views.endpoints import Severity
from tools.printed.fields import (
    Schema,
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


@dataclass(frozen=True, slots=True)
class Document:
    """What a command prints: one object, or one per line of any of these kinds.

    Attributes:
        commands: those that print it, without `sediment`.
        kinds: the objects; a document is one of them.
        is_listed: the command prints one object per line, perhaps none.
    """

    commands: tuple[str, ...]
    kinds: tuple[Schema, ...]
    is_listed: bool = False

    @property
    def name(self) -> str:
        return self.commands[0].replace(" ", "-")

    def schema(self) -> Schema:
        """Return the JSON Schema of one object."""
        called = ", ".join(f"`sediment {command} -o json`" for command in self.commands)
        head = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"{'A line' if self.is_listed else 'The output'} of {called}",
        }
        if len(self.kinds) == 1:
            return head | self.kinds[0]
        return head | {"anyOf": list(self.kinds)}


PARTITION = {
    "topic_id": id_of("the topic"),
    "topic": text("The topic's name."),
    "partition": integer("The partition's number."),
}

EPOCHS = {
    "type": "array",
    "description": "The leader epochs, each as [leader epoch, start offset].",
    "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
}

SEGMENT = {
    "segment_id": id_of("the segment"),
    "start_offset": integer("The segment's first offset."),
    "end_offset": integer("The segment's last offset, inclusive."),
    "max_timestamp_ms": time_ms("The greatest time of its records; -1 if they have none."),
    "segment_size_in_bytes": integer("The size of its log file."),
    "state": one_of(RemoteLogSegmentState, "The state of its metadata."),
    "copy_leased": boolean("Whether a process is copying it now."),
    "segment_leader_epochs": EPOCHS,
    "tail": boolean("Whether it is a tail: records copied before their segment rolled."),
}

RULE = {
    "reason": one_of(DeletionReason, "The rule that deletes it."),
    "detail": text("The figures that the rule compared."),
}

GAP = fields(
    "Offsets that the tier will never have.",
    {
        "start_offset": integer("The first offset."),
        "end_offset": integer("The last offset, inclusive."),
    },
)

HOLD = fields(
    "What keeps offsets from deletion.",
    {
        "name": text("Its name in its scope."),
        "kind": one_of(HoldKind, "Who set it, and how it ends."),
        "topic_id": nullable(id_of("the topic; null: all topics")),
        "topic": text("The topic's name; empty: all topics."),
        "partition": nullable(integer("The partition's number; null: all of them.")),
        "first_offset": integer("The first offset."),
        "last_offset": nullable(integer("The last offset, inclusive; null: no end.")),
        "reason": text("Why."),
        "until_ms": nullable(time_ms("When it ends; null: when it is ended.")),
        "actor": text("Who set it last."),
        "set_at_ms": time_ms("When it was first set."),
    },
)

EVENT = {
    "revision": integer("The partition's revision after the change."),
    "at_ms": time_ms("The time of the change, by the database's clock."),
    "kind": text("What changed: SEGMENT, LOG_START, LEADERSHIP and others."),
    "from_state": text('The state before; "" if none.'),
    "to_state": text('The state after; "" if none.'),
    "segment_id": text('The id of the segment; "" if the change is not of a segment.'),
    "key": text("topicId:partition:endOffset:brokerLeaderEpoch of the segment, or the object."),
    "actor": text("The client that made the change."),
    "call_id": text("The id of its call, as in the logs."),
    "request_id": text('The id that the client gave its request; "" if none.'),
    "reason": text("Why, as the client said."),
    "rule_detail": text("The figures that the rule compared."),
    "plan_id": text('The id of the sweep; "" if none.'),
    "broker_id": integer("The broker that made the change; -1 if none."),
    "broker_leader_epoch": nullable(integer("The leader epoch of the change; null if not given.")),
    "repeat_count": integer("How many later calls requested the same change again."),
}

PROBLEM = {
    "kind": one_of(ProblemKind, "Why something is not copied."),
    "path": text("The file or folder at fault."),
    "message": text("What is wrong and what to do."),
    "offset": nullable(integer("The offset at which the problem begins; null if unknown.")),
    "blocked_segments": integer("How many segments it blocks."),
}

PROBLEMS = list_of(fields("A problem.", PROBLEM), "What is not copied, and why.")

TOTALS = {
    "finished_segments": integer("Segments in COPY_SEGMENT_FINISHED, which are read."),
    "finished_bytes": integer("The bytes of their log files."),
    "live_segments": integer("Segments in any state but DELETE_SEGMENT_FINISHED."),
    "live_bytes": integer("The bytes of their log files."),
}

EXPECTED = nullable(
    fields(
        "What Kafka does with the log by its own retention; null if no poller reported it.",
        {
            "age_ms": integer("The age of the report."),
            "broker_id": integer("The broker that leads the partition."),
            "leader_epoch": integer("Its leader epoch."),
            "leader_epochs": EPOCHS,
            "log_start_offset": integer("The log start offset in Kafka."),
            "high_watermark": integer("The high watermark."),
            "expected_deletions": list_of(id_of("a segment"), "The segments that Kafka deletes."),
            "expected_bytes": integer("The bytes of their log files."),
        },
    )
)

LOCATIONS = list_of(integer("A location's number."), "The locations that were read.")

RUN_ID = text("The id of the run, as in anomalies and logs.")

SEVERITY = one_of(Severity, "How bad it is.", by_name=True)

ANOMALY = fields(
    "A difference between metadata and store.",
    {
        "kind": one_of(AnomalyKind, "What differs."),
        "topic_id": id_of("the topic"),
        "partition": integer("The partition's number."),
        "segment_id": id_of("the segment"),
        "object_key": text('The object; "" for the segment as a whole.'),
        "detail": text("The figures."),
        "first_seen_ms": time_ms("When a run found it first."),
        "last_seen_ms": time_ms("When a run found it last."),
        "times_seen": integer("How many runs found it."),
        "run_id": text("The last run that found it."),
    },
)
