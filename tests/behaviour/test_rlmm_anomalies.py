"""Test reports of anomalies at the same time, their pages, and sweeps of later releases."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from services.api.operations import (
    MAX_ANOMALIES,
    AnomalyQuery,
    RunCounts,
    RunKind,
    ToolRun,
)
from services.api.remote_log_metadata_manager import all_anomalies
from services.rlmm.database import limits
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.operations.anomalies import fingerprint
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from tests.contract.rlmm.anomalies import anomaly, seen
from tests.contract.test_rlmm_over_grpc import client_over

RUNS = 6


def test_runs_at_the_same_time_wait_for_each_other_and_each_counts(engine: Engine) -> None:
    rlmm, topic_id = SqlRemoteLogMetadataManager(engine), uuid4()
    made = [anomaly(topic_id, partition=number) for number in range(100)]

    def run(number: int) -> None:
        # In another order each, as they find them.
        turned = made[number * 10 :] + made[: number * 10]
        rlmm.report_anomalies(turned if number % 2 else turned[::-1], f"run-{number}")

    with ThreadPoolExecutor(RUNS) as pool:
        list(pool.map(run, range(RUNS)))
    assert [each.times_seen for each in seen(rlmm, topic_id)] == [RUNS] * len(made)


@pytest.mark.deep
def test_a_page_of_long_anomalies_fits_into_a_message(database_url: str) -> None:
    with client_over(database_url) as client:
        listed = _report_long_ones(client)
        page = client.list_anomalies(page_size=1_200)
        assert 200 < len(page.anomalies) < listed
        assert page.next_page_token
        assert len({each.anomaly.partition for each in all_anomalies(client)}) == listed


def _report_long_ones(client: RemoteLogMetadataManagerClient) -> int:
    wide, count = "\N{GRINNING FACE}", 1_200
    made = [
        anomaly(uuid4(), partition=number, object_key=wide * 256, detail=wide * 1_024)
        for number in range(count)
    ]
    for first in range(0, count, 500):
        client.report_anomalies(made[first : first + 500], wide * 256)
    return count


def test_those_that_were_seen_first_at_the_same_moment_are_listed_once(engine: Engine) -> None:
    rlmm, topic_id = SqlRemoteLogMetadataManager(engine), uuid4()
    made = [anomaly(topic_id, partition=number) for number in range(MAX_ANOMALIES)]
    rlmm.report_anomalies(made, "run-1")
    with engine.begin() as connection:
        connection.execute(text("UPDATE anomalies SET first_seen = '2026-01-01 00:00:00.123457Z'"))
    listed = [each.anomaly.partition for each in seen(rlmm, topic_id)]
    assert sorted(listed) == list(range(MAX_ANOMALIES))


@pytest.mark.parametrize("microseconds", [-(2**63), 2**63 - 1])
def test_a_forged_page_token_is_a_place_like_any_other(engine: Engine, microseconds: int) -> None:
    rlmm, query = SqlRemoteLogMetadataManager(engine), AnomalyQuery()
    token = limits.encode(fingerprint(query), (microseconds, uuid4()))
    assert rlmm.list_anomalies(query, page_token=token).anomalies == ()


def test_kinds_that_only_a_later_release_knows_are_passed_over(engine: Engine) -> None:
    rlmm, topic_id = SqlRemoteLogMetadataManager(engine), uuid4()
    rlmm.report_anomalies([anomaly(topic_id, partition=number) for number in range(3)], "run")
    later = "UPDATE anomalies SET kind = 'UNHEARD_OF' WHERE partition = 1"
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE anomalies DROP CONSTRAINT ck_anomalies_kind"))
        connection.execute(text(later))
    query = AnomalyQuery(topic_id=topic_id)
    first = rlmm.list_anomalies(query, page_size=1)
    second = rlmm.list_anomalies(query, page_size=1, page_token=first.next_page_token)
    found = {each.anomaly.partition for each in (*first.anomalies, *second.anomalies)}
    # In one report it is the key, a digest, that says which was seen first.
    assert (found, second.next_page_token) == ({0, 2}, "")
    assert len(first.anomalies) == len(second.anomalies) == 1
    assert len(list(all_anomalies(rlmm))) == 2


def test_a_sweep_with_an_outcome_of_a_later_release_does_not_hide_the_others(
    engine: Engine,
) -> None:
    rlmm = SqlRemoteLogMetadataManager(engine)
    for run_id in ("here", "later"):
        run = ToolRun(RunKind.REMOVAL, run_id, topics=(uuid4().hex,))
        rlmm.report_tool_run(run, [RunCounts()])
    with engine.begin() as connection:
        connection.execute(text("UPDATE tool_runs SET outcome = 'HALTED' WHERE run_id = 'later'"))
    assert [each.run_id for each in rlmm.list_tool_runs().runs] == ["here"]
