"""Describe what the commands about topics, the database and settings print."""

from services.api.roles import Role
from services.local.data_directory import Store
from services.rlmm.database.schema import ReaderRole
from services.rsm.probe import Capability, Outcome, RuleLevel
from services.workflows.rebuild_report import DifferenceKind
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
from tools.printed.shared import LOCATIONS, RUN_ID, Document

_TOPIC = fields(
    "A topic in the tier.",
    {
        "topic_id": id_of("the topic"),
        "topic": text("The topic's name."),
        "partitions": integer("Its partitions in the tier."),
        "deleting_partitions": integer("Those that are being deleted."),
        "revision": integer("The revision of its settings."),
        "settings": map_of({"type": "string"}, "The settings that are set, by Kafka's names."),
        "waits_until_ms": nullable(
            time_ms("Until then what only these settings delete waits; null if nothing does.")
        ),
        "earlier_settings": map_of(
            {"type": "string"}, "Those that must want a deletion too until then."
        ),
    },
)

_SETTLED_FREEZE = {
    "since_ms": time_ms("When deletions were frozen."),
    "actor": text("The client that froze them."),
    "reason": text("Why."),
}

_FREEZE = nullable(fields("The freeze of deletions.", _SETTLED_FREEZE))

_REBUILD = fields(
    "A comparison of the bucket with an empty or restored database.",
    {
        "run_id": RUN_ID,
        "apply": boolean("Whether --apply was given."),
        "locations": LOCATIONS,
        "freeze": _FREEZE,
        "segments": integer("Complete copies that the bucket has."),
        "same": integer("Those that the metadata has too."),
        "incomplete": integer("Copies without a manifest."),
        "counts": counts(DifferenceKind, "The differences, by kind."),
        "imported": integer("Segments that were added to the metadata."),
        "finished": integer("Copies that were finished in the metadata."),
        "differences": list_of(
            fields(
                "A difference.",
                {
                    "kind": one_of(DifferenceKind, "What differs."),
                    "topic_id": id_of("the topic"),
                    "topic": text('The topic\'s name; "" if unknown.'),
                    "partition": integer("The partition's number."),
                    "segment_id": id_of("the segment"),
                    "start_offset": integer("Its first offset."),
                    "end_offset": nullable(integer("Its last offset; null if unknown.")),
                    "detail": text("The figures."),
                },
            ),
            "The first differences.",
        ),
        "unlisted": integer("Differences that are not in the list."),
        "kept": fields(
            "What the bucket keeps besides the segments.",
            {
                "kept_at_ms": nullable(time_ms("When it was kept; null if nothing is.")),
                "settings": integer("Topics whose settings were put back."),
                "holds": integer("Holds that were put back."),
                "log_starts": integer("Log starts that `db confirm-rebuild` raises."),
                "marks": integer("Partitions that `db confirm-rebuild` marks."),
                "refused": list_of(text("A refusal."), "What was not put back, and why."),
            },
        ),
    },
)

_PROBE = (
    fields(
        "What RSM found of the store.",
        {
            "location_id": integer("The location's number."),
            "place": text("Its bucket and prefix, or directory."),
            "usable": boolean("Whether RSM would start with it."),
            "capabilities": fields(
                "The result of each step.",
                {
                    f"{each.value}?": fields(
                        "A capability.",
                        {
                            "outcome": one_of(Outcome, "The result."),
                            "took_ms": number("How long the step took."),
                            "required": boolean("Whether RSM needs it."),
                            "detail": text("What the store did."),
                        },
                    )
                    for each in Capability
                },
            ),
            "rules": list_of(
                fields(
                    "A rule.", {"level": one_of(RuleLevel, "How bad it is."), "text": text("What.")}
                ),
                "What the store does by itself.",
            ),
        },
    ),
    fields(
        "A store that RSM would refuse before it tries its capabilities.",
        {"usable": boolean("Always false."), "problem": text("Why.")},
    ),
)

_GRANTS = (
    fields(
        "A grant of the policy.",
        {
            "identities": list_of(text("An identity."), "To whom."),
            "roles": list_of(one_of(Role, "A role."), "Which roles."),
            "topics": list_of(text("A pattern."), "For which topics."),
            "groups": list_of(text("A pattern."), "Which groups of consumers, at the listener."),
        },
    ),
    fields(
        "A call, with --as.",
        {
            "service": text("The service."),
            "rpc": text("The call."),
            "only?": text("The value of the request that this line is about."),
            "allowed": boolean("Whether the identity may make it."),
            "topics": list_of(text("A pattern."), "For which topics; empty if they do not matter."),
        },
    ),
)

_UP = fields(
    "A running stack; an address that is not served is empty.",
    {
        **{
            f"{service}{suffix}": text(f"HOST:PORT of {service.upper()}'s {what}.")
            for service in ("rsm", "rlmm", "rlm")
            for suffix, what in (("", "gRPC"), ("_health", "health"), ("_metrics", "metrics"))
        },
        "rlm_consumers": text(
            "HOST:PORT of RLM's listener for consumers; empty without --listener."
        ),
        "store": one_of(Store, "The kind of the store."),
        "s3_endpoint": text("The address of the store, of whichever kind."),
        "s3_region": text("Its region; empty unless it is S3."),
        "s3_bucket": text("The bucket or container."),
        "s3_prefix": text("The prefix of all objects."),
        "locations_file": text("RSM_LOCATIONS_FILE, which opens the store; empty if it is S3."),
        "deployment_id": text("What marks the bucket as this stack's."),
        "database_url": text("The database, without its password."),
        "credentials_file": text("The file with the secrets, which only its user can read."),
        "data_directory": text("The directory of all data."),
        "tls_ca": text("The authority's certificate; empty without --tls."),
        "tls_certificate": text("The certificate of the operator's commands."),
        "tls_key": text("Its key."),
        "pids": map_of({"type": "integer"}, "The process of each server, by name."),
    },
)

DOCUMENTS = (
    Document(("topics list",), (_TOPIC,), is_listed=True),
    Document(("topics show", "topics set"), (_TOPIC,)),
    Document(
        ("deletions confirm",),
        (
            fields(
                "The topic.",
                {
                    "topic_id": id_of("the topic"),
                    "topic": text("The topic's name."),
                    "config_revision": integer("The revision of the settings that counts."),
                },
            ),
        ),
    ),
    Document(
        ("topics delete",),
        (
            fields(
                "A topic that was marked for removal.",
                {
                    "topic_id": id_of("the topic"),
                    "topic": text("The topic's name."),
                    "partitions": integer("Its partitions."),
                    "marked": integer("Those that this call marked."),
                },
            ),
        ),
    ),
    Document(
        ("db upgrade",),
        (
            fields(
                "The schema after the upgrade.",
                {
                    "revision": nullable(text("The schema's revision.")),
                    "deployment_id": id_of("this deployment"),
                    "reader_role": one_of(ReaderRole, "The state of the role for reports."),
                },
            ),
        ),
    ),
    Document(
        ("db current",),
        (
            fields(
                "The schema's revision.",
                {
                    "current": nullable(text("Of the database; null if it has none.")),
                    "known": text("Of this release."),
                    "deletions_frozen_since_ms": nullable(
                        time_ms("Since when a rebuild has frozen deletions.")
                    ),
                },
            ),
        ),
    ),
    Document(
        ("db deployment-id",),
        (fields("The deployment's id.", {"deployment_id": id_of("this deployment")}),),
    ),
    Document(
        ("db check",),
        (
            fields(
                "The differences from what this release expects.",
                {
                    "problems": list_of(
                        fields(
                            "A difference.",
                            {
                                "what": text("The part at fault."),
                                "problem": text("The difference, and the remedy."),
                            },
                        ),
                        "The differences.",
                    )
                },
            ),
        ),
    ),
    Document(
        ("db maintain",),
        (
            fields(
                "The rows that were deleted.",
                {
                    "already_running": boolean("Whether another maintenance ran; then all are 0."),
                    "tombstones": integer("Rows of deleted segments."),
                    "request_outcomes": integer("Request ids."),
                    "events": integer("Events of the audit trail."),
                    "removed_topics": integer("Removed topics, of which one row each is left."),
                    "anomalies": integer("Anomalies."),
                    "tool_runs": integer("Old parts of checks."),
                    "holds": integer("Holds that ended by themselves."),
                    "kept_topics": nullable(
                        integer("Topics whose state the bucket keeps now; null if not kept.")
                    ),
                    "not_kept": text('Why it was not kept; "" if it was, or without --rsm.'),
                },
            ),
        ),
    ),
    Document(("db rebuild",), (_REBUILD,)),
    Document(
        ("db confirm-rebuild",),
        (
            fields(
                "The end of a rebuild.",
                {
                    "ended": _FREEZE,
                    "log_starts": integer("Log starts that were raised."),
                    "marks": integer("Partitions that were marked for removal."),
                    "refused": list_of(text("A refusal."), "What was not put back, and why."),
                },
            ),
        ),
    ),
    Document(("store probe",), _PROBE),
    Document(("policy check",), _GRANTS, is_listed=True),
    Document(
        ("config check",),
        (
            fields(
                "The judgement on a file of settings.",
                {
                    "services": list_of(text("A service."), "Those that the file has settings of."),
                    "problems": list_of(
                        fields(
                            "A problem.",
                            {
                                "service": text("The service that would not start."),
                                "problem": text("Why."),
                            },
                        ),
                        "The problems.",
                    ),
                },
            ),
        ),
    ),
    Document(("up",), (_UP,)),
)
