"""Describe what the commands about the whole tier print."""

from services.api.operations import CHECKS, AnomalyKind, RunKind, RunOutcome
from services.api.segments import RemoteLogSegmentState
from services.cli.doctor_findings import Level
from services.rsm.probe import RuleLevel
from services.workflows.unfinished_copies import CopyKind
from tools.printed.fields import (
    boolean,
    counts,
    fields,
    id_of,
    integer,
    list_of,
    map_of,
    nullable,
    number,
    one_of,
    text,
    time_ms,
)
from tools.printed.shared import (
    ANOMALY,
    HOLD,
    LOCATIONS,
    PARTITION,
    RUN_ID,
    SEVERITY,
    TOTALS,
    Document,
)

_AGES = {
    "bytes_by_age?": map_of({"type": "integer"}, "Bytes by the age of the segments; with --ages."),
    "bytes_copied?": map_of({"type": "integer"}, "Bytes copied in the last days; with --ages."),
    "write_requests?": map_of({"type": "integer"}, "Requests of these copies; with --ages."),
    "write_cost_per_month?": number("Their cost; with --ages and a price."),
}

_SIZES = {
    "partitions": integer("Its partitions in the tier."),
    **TOTALS,
    "stored_bytes": integer("The bytes of the objects of the finished log files."),
    "kept_segments": integer("What a broker deleted and the store still keeps."),
    "kept_bytes": integer("The bytes of their log files."),
    "objects": integer("The objects of its finished segments."),
    "cost_per_month?": number("The cost of its stored bytes, with --price-per-gib-month."),
    **_AGES,
}

_OWNER = nullable(text("The value of sediment.owner; null if not set."))

_USAGE = (
    fields(
        "A topic.",
        {"topic": text("The topic's name."), "topic_id": id_of("the topic"), "owner": _OWNER}
        | _SIZES,
    ),
    fields(
        "An owner, with --by owner, or the sum.",
        {"owner": _OWNER, "topics": integer("Its topics.")} | _SIZES,
    ),
)

_RECONCILE = fields(
    "A comparison of the store with the metadata.",
    {
        "run_id": RUN_ID,
        "delete": boolean("Whether --delete was given."),
        "grace_ms": integer("What is younger is left alone."),
        "locations": LOCATIONS,
        "listed_at_ms": nullable(
            time_ms("When the inventory was made that a run on Spark read; null: the run listed.")
        ),
        "objects": integer("Objects that were listed."),
        "segments": integer("Segments that were compared."),
        "anomalies": counts(AnomalyKind, "The differences that were found, by kind."),
        "copies": counts(CopyKind, "Copies that did not finish, by kind."),
        "unfinished": list_of(text("A copy."), "The first of these copies."),
        "deleted_objects": integer("Objects that were deleted."),
        "ended_uploads": integer("Unfinished uploads that were ended."),
        "left": integer("Objects that were not deleted because they changed meanwhile."),
        "unrecorded": integer("Deletions that the audit trail does not have."),
        "held": integer("Orphans and uploads that a hold keeps."),
        "failures": list_of(text("A failure."), "What could not be read or deleted."),
    },
)

_SCRUB = fields(
    "A run that read segments and verified their checksums.",
    {
        "run_id": RUN_ID,
        "part": integer("The part that was read."),
        "parts": integer("The number of parts."),
        "topics": list_of(text("A topic's name."), "The topics; empty: all."),
        "locations": LOCATIONS,
        "rate_bytes_per_s": integer("The most bytes that were read in a second; 0: any."),
        "segments": integer("Segments of this part."),
        "verified": integer("Segments that are as they were written."),
        "damaged": integer("Segments that are not."),
        "repaired": integer("Damaged segments that are read from a whole copy now (--repair)."),
        "anomalies": fields(
            "The anomalies that were recorded, by kind.",
            {
                kind.value: integer(f"How many are {kind.value}.")
                for kind in (AnomalyKind.CORRUPT_OBJECT, AnomalyKind.MISSING_OBJECTS)
            },
        ),
        "not_checked": integer("Segments that could not be read."),
        "deleted_meanwhile": integer("Segments that were deleted meanwhile."),
        "listings_broken_off": integer("Partitions whose segments were not all listed."),
        "cut_short": boolean("Whether the run ended before its end."),
        "read_bytes": integer("Bytes that were read."),
        "reasons": list_of(text("A reason."), "What was damaged or not checked, and why."),
        "repairs": list_of(text("A repair."), "What was rebuilt or copied, or why nothing was."),
    },
)

_RUN = fields(
    "The last run of a sweep or a check over a topic, or over the topics of the run.",
    {
        "kind": one_of(RunKind, "What it did."),
        "run_id": text("The run; of a sweep the id of its plan."),
        "outcome": one_of(RunOutcome, "How it ended."),
        "topics": list_of(text("A topic's name."), "The topics; empty: all."),
        "parts": integer("The number of parts."),
        "ended_parts": integer("Those that have ended."),
        "ended_ms": time_ms("When the oldest part ended, by the database's clock."),
        "last_ended_ms": time_ms("When the latest part ended."),
        "duration_ms": integer("How long the parts took together; 0 if not known."),
        "topic_id": nullable(id_of("the topic")),
        "segments": integer("Segments that it planned to delete, or read."),
        "done_segments": integer("Those that it deleted, or that are as they were written."),
        "done_bytes": integer("The bytes of their log files."),
        "failed_segments": integer("Those that it could not delete, or that are damaged."),
    },
)

_RESTORE = fields(
    "What was restored.",
    {
        "partitions": list_of(
            fields(
                "A partition that was restored.",
                PARTITION
                | {
                    "restored_as": fields("The partition that it became.", PARTITION),
                    "start_offset": integer("The first offset of the restored log."),
                    "end_offset": integer("The offset that its next record gets."),
                    "segments": integer("Its segments."),
                    "size_bytes": integer("The size of their log files."),
                    "resumed_segments": integer("Those that an earlier run had written."),
                    "missing": list_of(
                        fields(
                            "A range.",
                            {
                                "start_offset": integer("Its first offset."),
                                "end_offset": integer("Its last offset, inclusive."),
                            },
                        ),
                        "Offsets that were not found; with --allow-holes.",
                    ),
                    "open_transactions": list_of(
                        fields(
                            "A transaction.",
                            {
                                "producer_id": integer("The id of its producer."),
                                "start_offset": integer("Its first offset."),
                            },
                        ),
                        "Transactions that end after the end of the restored log.",
                    ),
                },
            ),
            "The restored partitions.",
        ),
        "failures": list_of(text("A failure."), "The partitions that were not, and why."),
    },
)

_VERIFIED = fields(
    "What was verified of a topic in one way.",
    {
        "topic": text("The topic's name."),
        "topic_id": id_of("the topic"),
        "kind": one_of(
            [kind.value for kind in CHECKS], "RECONCILE compares objects, SCRUB reads all bytes."
        ),
        "finished_segments": integer("Its segments in the tier now."),
        "finished_bytes": integer("The bytes of their log files."),
        "last": nullable(_RUN) | {"description": "The last run; null if there was none."},
    },
)

_COPY = fields(
    "A copy of segments to another layout.",
    {
        "run_id": RUN_ID,
        "target": text("own, or the directory of --to."),
        "topics": list_of(text("A topic's name."), "The topics; empty: all."),
        "rate_bytes_per_s": integer("The most bytes that were read in a second; 0: any."),
        "copied": integer("Segments that were copied and verified."),
        "copied_bytes": integer("The bytes of their logs."),
        "present": integer("Segments that were copied before."),
        "gone": integer("Segments that were deleted meanwhile."),
        "failed": integer("Segments that were not copied."),
        "reasons": list_of(text("A reason."), "Why they were not; the first of them."),
        "sources_deleted": integer("Segments without an object in the location of the source."),
        "sources_left": list_of(text("A failure."), "Why a source was not deleted."),
    },
)

_VERIFY = fields(
    "The segments of one partition, read and verified.",
    PARTITION
    | {
        "segments": integer("Finished segments of the partition."),
        "verified": integer("Segments that are as they were written."),
        "damaged": integer("Segments that are not."),
        "unchecked": integer("Segments that could not be read."),
        "deleted_meanwhile": integer("Segments that were deleted meanwhile."),
        "missing_start_offsets": list_of(
            integer("A start offset."), "Segments without their objects."
        ),
        "elsewhere_start_offsets": list_of(
            integer("A start offset."), "Segments in other locations, which were not read."
        ),
        "read_bytes": integer("Bytes that were read."),
        "reasons": list_of(text("A reason."), "What was damaged or not checked, and why."),
    },
)

_STATUS = fields(
    "Whether the tier is well.",
    {
        "severity": SEVERITY | {"description": "The worst of all lines; the exit code is 0, 1, 2."},
        "services": list_of(
            fields(
                "An endpoint.",
                {
                    "service": text("RSM, RLMM or RLM."),
                    "address": text("HOST:PORT."),
                    "severity": SEVERITY,
                    "version": text('The release that it runs; "" if unknown.'),
                    "ready": boolean("Whether it serves."),
                    "problem": text('Why it did not answer; "" if it did.'),
                    "unready": text('Why it does not serve; "" if it does, or did not answer.'),
                    "notes": list_of(
                        fields(
                            "What its store does by itself.",
                            {"level": one_of(RuleLevel, "How bad it is."), "text": text("What.")},
                        ),
                        "What RSM says of its store.",
                    ),
                },
            ),
            "The services.",
        ),
        "copy_lags": list_of(
            fields(
                "How far the copies of a broker are behind.",
                {
                    "severity": SEVERITY,
                    "broker_id": integer("The broker."),
                    "partitions": integer("Partitions that it leads."),
                    "lagging_partitions": integer("Those with a lag."),
                    "blocked_partitions": integer("Those that a problem blocks."),
                    "lag_segments": integer("Rolled segments that are not in the tier."),
                    "lag_bytes": integer("The bytes of their log files."),
                    "oldest_timestamp_ms": nullable(time_ms("The time of the oldest of them.")),
                    "local_retention_used": nullable(
                        number("The share of local retention that has passed; 1: Kafka deletes.")
                    ),
                    "drained": boolean("Whether it starts no copies and deletions."),
                    "unchecked_partitions": integer(
                        "Those that changed since their lag was counted."
                    ),
                    "lost_partitions": integer(
                        "Those of which the broker deleted records before their copy."
                    ),
                    "earlier_histories": integer(
                        "Those of which the tier has offsets from before the log began again."
                    ),
                    "broker_retention_set": integer(
                        "Those whose broker may delete what only it has, though RLM is to delete."
                    ),
                    "deleted_at_broker": integer(
                        "Those of which records were deleted at the broker, and not in the tier."
                    ),
                },
            ),
            "A line per RLM.",
        ),
        "tier": nullable(
            fields(
                "What RLMM knows; null if it was not reached.",
                {
                    "topics": integer("Topics in the tier."),
                    "partitions": integer("Partitions in the tier."),
                    **TOTALS,
                    "saved_bytes": integer("The finished bytes less those of their objects."),
                    "unfinished_segments": integer("Segments that are being copied or deleted."),
                    "unread_partitions": integer("Partitions with such segments not looked into."),
                    "stuck": list_of(
                        fields(
                            "A copy or deletion that began long ago.",
                            PARTITION
                            | {
                                "state": one_of(RemoteLogSegmentState, "Its state."),
                                "start_offset": integer("Its first offset."),
                                "age_ms": integer("For how long."),
                            },
                        ),
                        "The oldest first.",
                    ),
                    "topics_on_hold": list_of(text("A topic's name."), "Topics on hold."),
                    "unconfirmed_topics": list_of(
                        text("A topic's name."), "Topics whose deletions wait for a confirmation."
                    ),
                    "holds": integer("Holds, without those of exports."),
                    "oldest_hold": nullable(HOLD),
                    "deleting_partitions": integer("Partitions that are being deleted."),
                    "oldest_mark_ms": nullable(time_ms("Since when the first of them is.")),
                    "anomalies": counts(AnomalyKind, "Anomalies that runs saw lately, by kind."),
                    "has_more_anomalies": boolean("Whether there are more than were counted."),
                    "verifications": fields(
                        "How long ago all was verified, by kind.",
                        {
                            kind.value: fields(
                                "The topic that was verified least recently.",
                                {
                                    "oldest_ended_ms": nullable(time_ms("When.")),
                                    "oldest_topic": nullable(text("Its name.")),
                                    "unverified_topics": integer("Topics never verified."),
                                },
                            )
                            for kind in CHECKS
                        },
                    ),
                    "sweeps": list_of(_RUN, "The last sweeps, the latest first."),
                    "maintained_ms": nullable(time_ms("When the database was last maintained.")),
                },
            )
        ),
        "lines": list_of(
            fields(
                "A line of the screen.",
                {
                    "what": text("What it is about."),
                    "severity": SEVERITY,
                    "text": text("The line, for people; it may change with any release."),
                    "next": text('The next command; "" if there is none.'),
                },
            ),
            "The lines of the screen.",
        ),
    },
)

_DOCTOR = fields(
    "What is wrong with settings, clocks, store and database.",
    {
        "level": one_of(Level, "The worst of all findings.", by_name=True),
        "findings": list_of(
            fields(
                "A finding.",
                {
                    "check": text("The check that found it."),
                    "level": one_of(Level, "How bad it is.", by_name=True),
                    "text": text("What was found."),
                    "next": text('What to do; "" if nothing.'),
                },
            ),
            "The findings.",
        ),
    },
)

_SELFTEST = fields(
    "A segment that was copied, read and deleted.",
    {
        "passed": boolean("Whether every step succeeded."),
        "topic": text("The topic's name."),
        "steps": list_of(
            fields(
                "A step.",
                {
                    "name": text("What it did."),
                    "took_ms": number("How long it took."),
                    "error": nullable(text("Why it failed; null if it did not.")),
                },
            ),
            "The steps, in their order.",
        ),
    },
)

_KEYS = {
    "current": text('The id of the key for new segments; "" if RSM has no ring.'),
    "ring": list_of(text("The id of a key."), "The keys of the ring."),
    "problem": text('What is wrong with the ring; "" if nothing.'),
    "keys": list_of(
        fields(
            "A key that segments need.",
            {
                "location_id": integer("The number of the location."),
                "key_id": text('Its id; "" for manifests without a seal.'),
                "segments": integer("Segments that need it."),
                "problem": text('Why the ring cannot unwrap it; "" if it can.'),
            },
        ),
        "The keys in use, by location.",
    ),
    "gone": integer("Segments that were deleted meanwhile."),
    "reasons": list_of(text("A reason."), "Why the first manifests failed."),
}
_KEYS_IN_USE = fields(
    "Which keys segments need.", {**_KEYS, "unread": integer("Manifests that were not read.")}
)
_REWRAPPED = fields(
    "What a rewrap did.",
    {
        **_KEYS,
        "run_id": text("Names the run."),
        "segments": integer("Segments that it went through."),
        "changed": integer("Segments that were rewrapped, or sealed."),
        "failed": integer("Segments that were not."),
        "topics_before": integer("Topics that the run had done before it was cut short."),
    },
)

DOCUMENTS = (
    Document(("keys",), (_KEYS_IN_USE,)),
    Document(("keys rewrap",), (_REWRAPPED,)),
    Document(("selftest",), (_SELFTEST,)),
    Document(("status",), (_STATUS,)),
    Document(("doctor",), (_DOCTOR,)),
    Document(("usage",), _USAGE, is_listed=True),
    Document(("reconcile",), (_RECONCILE,)),
    Document(("scrub",), (_SCRUB,)),
    Document(("copy",), (_COPY,)),
    Document(("verify",), (_VERIFY,)),
    Document(("restore",), (_RESTORE,)),
    Document(("verified",), (_VERIFIED,), is_listed=True),
    Document(("anomalies",), (ANOMALY,), is_listed=True),
)
