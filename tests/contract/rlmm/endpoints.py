"""Test the announcements of RLMs: a lease for one process of each log directory."""

from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from services.api.endpoints import MAX_ENDPOINT_LEASE_MS, MAX_ENDPOINT_LENGTH, RlmEndpoint
from services.api.errors import ConcurrentUpdateError, InvalidRequestError
from tests.contract.rlmm.segments import RlmmContractPart
from tests.harness.eventually import eventually

LEASE_MS = 60_000


def endpoint(cluster_id: str, broker_id: int, directory: str = "") -> RlmEndpoint:
    address, listener = f"rlm-{broker_id}:50053", f"rlm-{broker_id}:9192"
    return RlmEndpoint(cluster_id, directory or f"d{broker_id}", broker_id, address, listener)


class Endpoints(RlmmContractPart):
    def announce(
        self, announced: RlmEndpoint, instance: UUID | None = None, lease_ms: int = LEASE_MS
    ) -> list[RlmEndpoint]:
        return self.rlmm.announce_endpoint(announced, instance or uuid4(), lease_ms)

    def test_an_announcement_lists_the_live_ones_of_its_cluster(self) -> None:
        cluster, other = uuid4().hex, uuid4().hex
        two, one = endpoint(cluster, 2), replace(endpoint(cluster, 1), listener=None)
        self.announce(endpoint(other, 1))
        assert self.announce(two) == [two]
        assert self.announce(one) == [one, two]
        assert self.announce(endpoint(other, 3)) == [endpoint(other, 1), endpoint(other, 3)]

    def test_a_process_announces_again_and_moves(self) -> None:
        process, before = uuid4(), endpoint(uuid4().hex, 1)
        moved = replace(before, address="elsewhere:50053", listener=None)
        self.announce(before, process)
        assert self.announce(moved, process) == [moved]

    def test_two_processes_of_one_directory_the_second_is_refused_by_name(self) -> None:
        first, cluster = uuid4(), uuid4().hex
        held = endpoint(cluster, 1)
        self.announce(held, first)
        with pytest.raises(ConcurrentUpdateError, match="rlm-1:50053, has announced"):
            self.announce(replace(held, address="second:50053"))
        assert self.announce(endpoint(cluster, 2)) == [held, endpoint(cluster, 2)]
        self.announce(held, first)

    def test_a_lease_ends_by_itself_and_with_its_process(self) -> None:
        cluster, first = uuid4().hex, uuid4()
        short, other, live = (endpoint(cluster, broker) for broker in (1, 2, 3))
        self.announce(short, lease_ms=1)
        assert self.announce(other, first) in ([other], [short, other])
        self.announce(other, first, lease_ms=0)
        eventually(lambda: self.announce(live, first) == [live])
        assert self.announce(replace(short, address="next:1")) == [
            replace(short, address="next:1"),
            live,
        ]

    def test_of_two_directories_of_a_broker_the_last_announced_counts(self) -> None:
        """The broker's disk was replaced, and the first one's lease lasts."""
        cluster = uuid4().hex
        old, new = endpoint(cluster, 1, "old"), endpoint(cluster, 1, "new")
        self.announce(old, lease_ms=LEASE_MS - 1)
        assert self.announce(new) == [new]

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"cluster_id": ""}, "endpoint.cluster_id"),
            ({"directory_id": "d" * (MAX_ENDPOINT_LENGTH + 1)}, "endpoint.directory_id"),
            ({"address": "a\0b"}, "endpoint.address"),
            ({"listener": ""}, "endpoint.listener"),
            ({"broker_id": -1}, "endpoint.broker_id"),
        ],
    )
    def test_what_no_rlm_announces_is_refused(self, change: dict[str, object], field: str) -> None:
        with pytest.raises(InvalidRequestError, match=field):
            self.announce(replace(endpoint(uuid4().hex, 1), **change))  # type: ignore[arg-type]

    @pytest.mark.parametrize("lease_ms", [-1, MAX_ENDPOINT_LEASE_MS + 1])
    def test_a_lease_is_bounded(self, lease_ms: int) -> None:
        with pytest.raises(InvalidRequestError, match="lease_ms"):
            self.announce(endpoint(uuid4().hex, 1), lease_ms=lease_ms)
