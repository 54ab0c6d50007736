"""Test that what a call asks for while the policy changes is checked by the new policy, too."""

from pathlib import Path
from typing import cast

import pytest

from services.api.errors import PermissionDeniedError
from services.api.roles import PACKAGE
from services.api.watches import MAX_WATCHED
from services.common.reloaded_file import ReloadedFile
from services.rpc.server.access import Permit
from services.rpc.server.identity import Caller
from services.rpc.server.policy import Policy, parse_policy
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb

METHOD = f"/{PACKAGE}.RemoteLogMetadataManager/GetPartitionState"
WATCH = f"/{PACKAGE}.RemoteLogMetadataManager/WatchPartitions"


def granting(*topics: str) -> Policy:
    names = ", ".join(f'"{topic}"' for topic in topics)
    text = f'[[grant]]\nidentities = ["me"]\nroles = ["reader"]\ntopics = [{names}]'
    return parse_policy(text.encode())


class ChangingPolicy:
    """A policy file whose content changes after a number of reads."""

    def __init__(self, *policies: Policy) -> None:
        self._policies = list(policies)

    def current(self) -> Policy:
        return self._policies.pop(0) if len(self._policies) > 1 else self._policies[0]

    def replace(self, policy: Policy) -> None:
        self._policies = [policy]


def permit(*policies: Policy) -> Permit:
    return Permit(Caller("me"), METHOD, cast(ReloadedFile[Policy], ChangingPolicy(*policies)))


def request(topic: str) -> pb.GetPartitionStateRequest:
    tp = segment_pb.TopicIdPartition(topic=topic)
    return pb.GetPartitionStateRequest(topic_id_partition=tp)


def test_a_policy_that_changes_between_check_and_note_is_asked_again(tmp_path: Path) -> None:
    old, new = granting("a", "b"), granting("a")
    # Three reads make the permit; of the check that fails for all topics there is one, and the
    # next is that for topic b.
    call = permit(old, old, old, old, old, new)
    with pytest.raises(PermissionDeniedError, match="on topic 'b'"):
        call.check_request(request("b"))


def test_a_watch_of_as_many_topics_as_it_may_name_is_checked_again_for_the_last() -> None:
    policy = ChangingPolicy(granting("kept-*", "last"))
    watch = Permit(Caller("me"), WATCH, cast(ReloadedFile[Policy], policy))
    # A request names its topics as a set: one request for each gives them an order.
    for topic in [*(f"kept-{number}" for number in range(1, MAX_WATCHED)), "last"]:
        watch.check_request(watching(topic))
    assert watch.is_valid()
    policy.replace(granting("kept-*"))
    assert not watch.is_valid()


def watching(topic: str) -> pb.WatchPartitionsRequest:
    tp = segment_pb.TopicIdPartition(topic=topic)
    return pb.WatchPartitionsRequest(partitions=[pb.WatchedPartition(topic_id_partition=tp)])


def test_a_permit_ends_with_the_grant_of_any_topic_that_it_used() -> None:
    old, new = granting("a", "b"), granting("a")
    used = permit(*[old] * 10, new)
    used.check_request(request("b"))
    while used.is_valid():
        pass
    unused = permit(*[old] * 10, new)
    unused.check_request(request("a"))
    for _ in range(20):
        assert unused.is_valid()
