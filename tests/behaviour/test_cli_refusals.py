"""Test that commands refuse what is wrong in plain words and change nothing."""

from collections.abc import Iterator
from uuid import UUID

import pytest

from services.api.ids import TopicIdPartition, uuid_to_text
from services.rsm.settings import RsmSettings
from tests.contract.rlmm.segments import finished
from tests.harness.processes import RlmmProcess, serving_rlmm
from tests.harness.served import serving

TP = TopicIdPartition(UUID(int=1), "orders", 0)
SETTINGS = {"retention.bytes": "7"}
AN_ID = uuid_to_text(UUID(int=2))
AWAY = "127.0.0.1:1"
NO_TOPIC = "sediment: the tier has no topic nowhere; `sediment topics list` lists its topics"
NO_PARTITION = "the tier has no partition nowhere-0"
WHY = "--reason=because"
UNDELETE = f"undelete orders-0 {WHY}"

WRONG_COMMAND_LINES = [
    # Names that are not known.
    (
        "explain nowhere-0",
        f"{NO_PARTITION}; `sediment topics list` lists its topics; of a removed one pass "
        "TOPIC_ID:nowhere-0 (`sediment topics list --removed -o wide`)",
    ),
    (
        "segments x:nowhere-0",
        "topic id: must be 22 characters of URL-safe base64 or a UUID, is 'x'",
    ),
    ("up --data-dir /nowhere/data --log-dir /nowhere/log", "/nowhere/log: no such directory"),
    ("explain nowhere", "'nowhere' is not TOPIC-PARTITION"),
    (f"explain {AN_ID}:nowhere-0", NO_PARTITION),
    (f"explain orders-0 {AN_ID}", "list the segments with `sediment segments`"),
    ("retention nowhere-0", NO_PARTITION),
    ("retention nowhere", "nothing is named nowhere; `sediment topics list`"),
    (f"retention {AN_ID}:nowhere-0", f"topic id {AN_ID} is not known"),
    ("verify nowhere-0", NO_PARTITION),
    ("topics show nowhere", NO_TOPIC),
    ("topics set nowhere sediment.owner=team", NO_TOPIC),
    ("topics delete nowhere --yes", NO_TOPIC),
    ("anomalies --topic=nowhere", NO_TOPIC),
    ("scrub --topic nowhere", NO_TOPIC),
    ("verified nowhere", NO_TOPIC),
    ("usage nowhere", NO_TOPIC),
    ("topics show odrers", "the tier has no topic odrers; did you mean orders?"),
    ("segments odrers-0", "the tier has no partition odrers-0; did you mean orders-0?"),
    (f"partitions undelete nowhere-0 {WHY}", NO_PARTITION),
    (f"partitions undelete orders-7 {WHY}", "the tier has no partition orders-7"),
    (f"partitions undelete orders {WHY}", "'orders' is not TOPIC-PARTITION"),
    (
        f"partitions reset-epoch orders-7 --epoch=3 --yes {WHY}",
        "the tier has no partition orders-7",
    ),
    ("reconcile --location 7", "location 7 is not registered"),
    ("scrub --location 7", "location 7 is not registered"),
    ("statsu", "'status'"),
    ("db upgrad", "'upgrade'"),
    ("status --rlm-m x", "--rlmm"),
    # Values of another form.
    ("anomalies --kind=ODD", "sediment: --kind: unknown kind 'ODD'; use one of ORPHAN_OBJECTS, "),
    ("events orders-0 --segment x", "--segment: must be 22 characters"),
    ("explain orders-0 no-id", "sediment: SEGMENT: must be 22 characters"),
    ("scrub --part 3", "--part: '3' is not I/N"),
    ("scrub --part 3/2", "part: must be 1 to 2"),
    ("scrub --part 0/2", "part: must be 1 to 2"),
    ("fetch orders-0 --offset abc", "--offset: must be a whole number, 0 or more, is 'abc' (see"),
    ("fetch orders-0 --offset -5", "--offset: must be a whole number, 0 or more, is '-5' (see"),
    ("fetch orders-0 --max-batch-size 1X", "--max-batch-size: must be a size such as 64KiB, 1M"),
    ("status --stuck-after soon", "--stuck-after: must be a duration such as 8d, 1h"),
    ("ship / --copy-lease 2h", "--copy-lease: must be a duration such as"),
    ("status -o xml", "--output: must be one of table, wide, json, is 'xml' (see `sediment status"),
    ("segments orders-0 orders-1", "too many arguments (orders-1)"),
    ("console --listen x", "--listen: 'x' is not HOST:PORT"),
    ("console --listen 1.2.3.4:80", "--listen: other machines may reach 1.2.3.4:80"),
    ("console --listen no.invalid:0", "--listen: other machines may reach no.invalid:0"),
    ("db maintain --events-retention 0", "events-retention: must be 1 to 36500 days"),
    ("usage --price-per-gib-month=nan", "must be a number, 0 or more"),
    ("usage --price-per-gib-month=inf", "must be a number, 0 or more"),
    ("usage --price-per-gib-month=-1", "must be a number, 0 or more"),
    ("offsets orders-0 --time=yesterday", "'yesterday' is no time"),
    ("offsets orders-0 --time=-5", "'-5' is no time"),
    ("offsets orders-0 --time=", "'' is no time"),
    ("offsets orders-0 --time=1969-12-31", "'1969-12-31' is before 1970"),
    ("fetch orders-0 --offset 0 -f %x", "'%x' is no token"),
    ("topics set orders retention.mss=1", "retention.mss: no such setting"),
    (
        "topics set orders retention.ms=7d",
        "sediment: retention.ms is a number of milliseconds: 7d is 604800000\n",
    ),
    ("topics set orders retention.bytes=1GiB", "a number of bytes: 1GiB is 1073741824\n"),
    ("topics set orders retention.ms=soon", "retention.ms: must be a whole number"),
    (
        "topics set orders retention.ms=1 local.retention.ms=2",
        "local.retention.ms: must not be longer",
    ),
    ("topics set orders cleanup.policy=compact", "cleanup.policy"),
    ("topics set orders retention.ms", "'retention.ms' is not KEY=VALUE"),
    ("topics set orders =1", "'=1' is not KEY=VALUE"),
    ("topics list --rlmm localhost", "'localhost' is not HOST:PORT"),
    ("topics list --rlmm rlmm:", "'rlmm:' is not HOST:PORT"),
    ("topics list --rlmm :50052", "':50052' is not HOST:PORT"),
    ("topics list --rlmm ::1:50052", "'::1:50052' is not HOST:PORT"),
    ("topics list --rlmm rlmm:99999", "'rlmm:99999' is not HOST:PORT"),
    # What contradicts, or is missing.
    (f"explain orders-0 {AN_ID} --offset 1", "SEGMENT and --offset exclude each other"),
    ("topics set orders retention.ms=1 retention.ms=2", "retention.ms is set twice"),
    ("topics set orders sediment.owner=team --unset=sediment.owner", "is both set and unset"),
    ("topics set orders --unset=retention.ms", "retention.ms is not set for topic"),
    ("topics set orders", "nothing to change"),
    ("topics delete orders", "pass --yes"),
    ("usage --price-per-thousand-writes=1", "requests are counted by --ages, add it"),
    ("fetch orders-0", "either --offset or --from-time"),
    ("fetch orders-0 --offset 1 --from-time 5", "either --offset or --from-time"),
    ("ship", "LOG_DIR"),
    ("db confirm-rebuild", "--reason"),
    ("partitions undelete orders-0", "--reason"),
    (f"partitions undelete orders-0 --reason={'x' * 257}", "reason: over 256 characters"),
    ("partitions undelete orders-0 --reason=", "give a reason"),
    ("partitions reset-epoch orders-0 --epoch=3 --yes --reason=", "give a reason"),
    (f"partitions --rlm localhost:1 {UNDELETE}", "no such option: --rlm; did you mean --rlmm"),
]


@pytest.fixture(scope="module")
def rlmm(rlmm_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RlmmProcess]:
    """Provide an RLMM that knows one partition, and RSM."""
    objects = RsmSettings(backend="filesystem", directory=tmp_path_factory.mktemp("objects"))
    with serving_rlmm(rlmm_database_url) as made, serving(objects) as rsm:
        finished(made.client, TP, 0, 9)
        made.client.put_topic_config(TP.topic_id, SETTINGS)
        yield made.beside(SEDIMENT_RSM=rsm.address, RLMM_DATABASE_URL=rlmm_database_url)


def changes(rlmm: RlmmProcess) -> tuple[int, int]:
    """Return the revisions of the partition and of its topic's settings."""
    settings = rlmm.client.topic_config(TP.topic_id)
    return rlmm.client.partition_state(TP).revision, settings.revision


@pytest.mark.parametrize(("command", "words"), WRONG_COMMAND_LINES)
def test_a_wrong_command_line_is_refused_and_changes_nothing(
    rlmm: RlmmProcess, command: str, words: str
) -> None:
    before = changes(rlmm)
    done = rlmm.sediment(*command.split(" "))
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr
    assert done.stderr.startswith("sediment: ")
    assert done.stderr.count("\n") == 1
    assert changes(rlmm) == before


@pytest.mark.parametrize(
    "command",
    [
        f"reconcile --rsm {AWAY}",
        f"scrub --rsm {AWAY}",
        f"topics list --rlmm {AWAY}",
        f"drain --rlm {AWAY}",
    ],
)
def test_a_service_that_is_away_is_named_in_one_line_with_the_next_command(
    rlmm: RlmmProcess, command: str
) -> None:
    done = rlmm.sediment(*command.split())
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert f" at {AWAY}" in line
    assert line.endswith("; `sediment doctor` shows which services answer")


PASSWORD = "not-to-be-told"


@pytest.mark.parametrize("command", ["upgrade", "current", "check", "maintain", "deployment-id"])
@pytest.mark.parametrize(
    ("place", "code", "line"),
    [
        (
            f"{AWAY}/tier",
            3,
            f"sediment: {AWAY}/tier: the metadata database cannot be used: ",
        ),
        ("h:x/d", 2, "sediment: database_url: not a URL; write postgresql://USER:PASSWORD@HOST:"),
    ],
    ids=["away", "no URL"],
)
def test_a_database_that_cannot_be_used_is_named_and_its_password_is_not(
    rlmm: RlmmProcess, command: str, place: str, code: int, line: str
) -> None:
    url = f"postgresql://somebody:{PASSWORD}@{place}"
    done = rlmm.sediment("db", command, "--database-url", url)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1
    assert PASSWORD not in done.stderr
