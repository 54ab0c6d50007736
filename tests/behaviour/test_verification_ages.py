"""Test the metrics of when topics were verified and the database was maintained."""

import threading
from uuid import UUID

from prometheus_client import REGISTRY
from sqlalchemy import text

from services.api.operations import RunCounts, RunKind, ToolRun
from services.api.topic_config import LOCAL_RETENTION_OWNER
from services.rlmm.database.db import Transactions
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.operations.maintenance import MaintenancePlan, maintain
from services.rlmm.operations.verification_ages import VerificationAges
from tests.contract.rlmm.partition_states import report_of
from tests.contract.rlmm.segments import finished
from tests.harness.databases import OwnRlmm
from tests.harness.tier import a_topic


def value(name: str, kind: str) -> float | None:
    return REGISTRY.get_sample_value(f"sediment_rlmm_{name}", {"kind": kind})


def scrubbed(rlmm: SqlRemoteLogMetadataManager, topic_id: UUID, part: int, parts: int) -> None:
    run = ToolRun(RunKind.SCRUB, "run", part=part, parts=parts)
    rlmm.report_tool_run(run, [RunCounts(topic_id)])


def test_the_oldest_whole_verification_counts_and_topics_without_one(rlmm: OwnRlmm) -> None:
    [old], [young], [half], [empty] = (a_topic() for _ in range(4))
    for tp in (old, young, half):
        finished(rlmm, tp, 0, 9)
    ages = VerificationAges(Transactions(rlmm.engine))
    ages.refresh()
    assert [value("unverified_topics", kind) for kind in ("SCRUB", "RECONCILE")] == [3, 3]
    for part in (1, 2):
        scrubbed(rlmm, old.topic_id, part, 2)
    with rlmm.engine.begin() as connection:
        connection.execute(text("UPDATE tool_runs SET ended_at = to_timestamp(1000 * part)"))
    scrubbed(rlmm, young.topic_id, 1, 1)
    scrubbed(rlmm, half.topic_id, 1, 2)
    scrubbed(rlmm, empty.topic_id, 1, 1)
    ages.refresh()
    assert value("oldest_verification_timestamp_seconds", "SCRUB") == 1_000
    assert [value("unverified_topics", kind) for kind in ("SCRUB", "RECONCILE")] == [1, 3]


def test_the_last_maintenance_counts_and_the_schemas_age_before_it(rlmm: OwnRlmm) -> None:
    name = "sediment_rlmm_last_maintenance_timestamp_seconds"
    ages = VerificationAges(Transactions(rlmm.engine))
    with rlmm.engine.begin() as connection:
        connection.execute(text("UPDATE deployment SET made_at = to_timestamp(1000)"))
    scrubbed(rlmm, a_topic()[0].topic_id, 1, 1)
    ages.refresh()
    assert REGISTRY.get_sample_value(name) == 1_000
    maintain(rlmm.database_url, MaintenancePlan())
    ages.refresh()
    latest = REGISTRY.get_sample_value(name)
    assert latest is not None
    assert latest > 1_000_000_000


def test_the_thread_ends_when_it_is_stopped(rlmm: OwnRlmm) -> None:
    ages = VerificationAges(Transactions(rlmm.engine))
    ages.start()
    assert "verification-ages" in {thread.name for thread in threading.enumerate()}
    ages.stop()
    assert "verification-ages" not in {thread.name for thread in threading.enumerate()}


def test_the_oldest_report_of_a_trimmed_log_counts_by_its_broker(rlmm: OwnRlmm) -> None:
    def oldest(broker_id: int) -> float | None:
        name = "sediment_rlmm_oldest_trim_report_timestamp_seconds"
        return REGISTRY.get_sample_value(name, {"broker_id": str(broker_id)})

    [trimmed], [other] = a_topic(), a_topic()
    ages = VerificationAges(Transactions(rlmm.engine))
    for tp, broker_id in ((trimmed, 7), (other, 8)):
        rlmm.report_partition_state([report_of(tp, broker_id=broker_id)])
    revision = rlmm.put_topic_config(trimmed.topic_id, {LOCAL_RETENTION_OWNER: "rlm"}).revision
    with rlmm.engine.begin() as connection:
        connection.execute(text("UPDATE partition_states SET reported_at = to_timestamp(1000)"))
    ages.refresh()
    assert [oldest(broker_id) for broker_id in (7, 8)] == [1_000, None]
    rlmm.put_topic_config(trimmed.topic_id, {}, revision)
    ages.refresh()
    assert oldest(7) is None
