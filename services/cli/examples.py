"""List examples of each command, for its help and the page of commands; a test runs the first."""

_DIRECTORY = "/var/lib/kafka/data"

EXAMPLES: dict[str, tuple[str, ...]] = {
    "status": ("", "-o json", "--stuck-after 4h"),
    "doctor": ("", "--timeout 30s"),
    "top": ("--count 1", "--interval 10s"),
    "console": ("", "--listen 127.0.0.1:8080"),
    "topics list": ("", "'orders*'", "--removed"),
    "topics show": ("payments",),
    "topics set": (
        "payments retention.ms=604800000",
        "payments retention.ms=3600000 --now",
        "payments sediment.owner=billing --unset retention.ms",
        "payments sediment.local.retention.owner=rlm --yes",
    ),
    "topics delete-records": ("payments-0 --before 10 --yes",),
    "topics delete": ("payments --yes",),
    "deletions confirm": ("payments", "payments --revision 3 --reason checked"),
    "partitions list": ("", "payments 'orders*'", "-o wide"),
    "segments": ("payments-0", "payments-0 --state FINISHED --limit 10", "payments-0 --offset 10"),
    "events": ("payments-0", "payments-0 --last 20"),
    "explain": ("payments-0", "payments-0 --offset 10"),
    "retention": ("payments-0", ""),
    "offsets": ("payments-0", "payments-0 --time 2026-01-31T12:00:00Z"),
    "fetch": (
        "payments-0 --from beginning",
        "payments-0 --last 5 -o json",
        r"payments-0 --from 2026-01-31T12:00:00Z -f '%o %k %s\n'",
        "payments-0 --from end --follow",
        "payments --kept -o json",
    ),
    "usage": ("--price-per-gib-month 0.023", "payments --ages", "--by owner"),
    "anomalies": ("", "--kind CORRUPT_OBJECT --topic payments"),
    "verified": ("", "payments"),
    "metadata print": (
        "remote_log_snapshot",
        "dump/00000000000000000000.log -o json",
        "--bootstrap-server kafka.example:9092",
    ),
    "metadata import": (
        "--bootstrap-server kafka:9092 --location 2 --dry-run",
        "--bootstrap-server kafka:9092 --location 2",
        "--bootstrap-server kafka:9092 --location 2 --follow",
        "--bootstrap-server kafka:9092 --location 2 --switch",
    ),
    "metadata export": (
        "--bootstrap-server kafka:9092",
        "--bootstrap-server kafka:9092 --location 2 --follow",
    ),
    "holds list": ("", "payments"),
    "holds set": (
        'payments --name audit --reason "until the audit ends"',
        'payments-0 --legal --name case-7 --reason "case 7" --to 200',
        'payments --reason "a bug" --from-time 2026-11-01T00:00:00Z',
    ),
    "holds end": ("payments audit", "payments-0 case-7 --legal", "payments-0 s3a://lake/records"),
    "ship": (_DIRECTORY, f"{_DIRECTORY} --retry-for 10m"),
    "sweep retention": ("--topic payments", "--topic payments --apply --max-size 1TiB"),
    "sweep removal": ("", "--apply --grace 1d"),
    "copy": ("--adopt", "--adopt --topic payments --rate 100MiB", "--to /mnt/tier"),
    "drain": ("--timeout 10m", "--cancel"),
    "reconcile": ("", "--delete --grace 2d"),
    "scrub": ("--rate 100MiB", "--part 3/28"),
    "verify": ("payments-0",),
    "restore": (
        "payments-0 /var/lib/kafka/new",
        "payments-0 payments-1 /var/lib/kafka/new --as again",
        "payments-0 /var/lib/kafka/new --as again --before 2026-01-31",
    ),
    "partitions undelete": ('payments-0 --reason "wrong topic"',),
    "partitions reset-epoch": ("payments-0 --epoch 12 --yes --reason mistake",),
    "partitions drop-history": ('payments-0 --reason "a lost disk"',),
    "db current": ("", "--database-url postgresql://rlmm@db.example/tier"),
    "db upgrade": ("",),
    "db check": ("",),
    "db maintain": ("", "--events-retention 365d"),
    "db deployment-id": ("",),
    "db rebuild": ("", "--apply"),
    "db confirm-rebuild": ('--reason "settings are put back"',),
    "up": (f"--log-dir {_DIRECTORY}", f"--tls --listener --log-dir {_DIRECTORY}", "--print rlmm"),
    "selftest": ("",),
    "store probe": ("",),
    "policy check": ("policy.toml", "policy.toml --as spiffe://example/broker-1"),
    "config check": ("rsm.env",),
    "completion": ("bash",),
}


def examples_of(command: str) -> list[str]:
    """Return the lines that a person may type for a command, such as "topics set"."""
    return [f"sediment {command} {rest}".rstrip() for rest in EXAMPLES.get(command, ())]
