"""Test that the table of roles covers the contracts, value by value."""

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from services.api.roles import PACKAGE, RULES, Role, Roles, Topics, rule_of
from services.rpc.server.request_scope import places_of, value_names
from tieredstorage.v1 import remote_log_manager_pb2 as log_pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as metadata_pb
from tieredstorage.v1 import remote_storage_manager_pb2 as storage_pb

REQUESTS: dict[str, Descriptor] = {
    f"{service.name}/{method.name}": method.input_type
    for file in (storage_pb, metadata_pb, log_pb)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
# Values that the RPCs refuse as malformed.
NEVER_ASKED = {"UNSPECIFIED", "COPY_SEGMENT_STARTED"}


def test_every_rpc_has_a_rule_and_every_rule_an_rpc() -> None:
    assert RULES.keys() == REQUESTS.keys()
    for name in REQUESTS:
        assert rule_of(f"/{PACKAGE}.{name}") is RULES[name]


def test_methods_without_a_rule_are_denied_to_all() -> None:
    for method in (
        "/tieredstorage.v1.RemoteLogManager/Unknown",
        "/RemoteLogManager/Fetch/",
        "/other.v1.RemoteLogManager/Fetch",
        "/grpc.health.v1.Health/Check",
        "",
    ):
        assert rule_of(method) is None


@pytest.mark.parametrize("name", RULES)
def test_a_rule_fits_its_request(name: str) -> None:
    rule, request = RULES[name], REQUESTS[name]
    assert rule.roles
    named = places_of(request)
    if rule.topics is Topics.NAMED:
        assert named
    elif name.startswith("RemoteLog") and name != "RemoteLogMetadataManager/IsReady":
        # What names partitions is checked by their topics.
        assert not named
    if rule.topics is Topics.FILTER:
        assert field_at(request, rule.filter).name
    if rule.topics is Topics.STORED:
        assert "topic_id" in request.fields_by_name


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.by_value])
def test_a_rule_by_value_has_every_value(name: str) -> None:
    rule = RULES[name]
    assert rule.by_value is not None
    values = set(value_names(field_at(REQUESTS[name], rule.by_value.path)).values())
    assert rule.by_value.roles.keys() == values - NEVER_ASKED
    union: Roles = frozenset[Role]().union(*rule.by_value.roles.values())
    assert union == rule.roles


def field_at(kind: Descriptor, path: str) -> FieldDescriptor:
    *way, last = path.split(".")
    for name in way:
        inner = kind.fields_by_name[name].message_type
        assert inner is not None
        kind = inner
    return kind.fields_by_name[last]


def test_only_a_deleter_or_sweeper_deletes_and_only_a_reader_reads_records() -> None:
    """The lines of the table that matter most, written once more."""

    def may(name: str, value: str = "") -> set[Role]:
        rule = RULES[name]
        return set(rule.by_value.roles[value] if rule.by_value and value else rule.roles)

    rsm, rlmm, rlm = "RemoteStorageManager", "RemoteLogMetadataManager", "RemoteLogManager"
    update = f"{rlmm}/UpdateRemoteLogSegmentMetadata"
    assert may(f"{rsm}/FetchLogSegment") == may(f"{rlm}/Fetch") == {Role.READER}
    assert may(f"{rsm}/CopyLogSegmentData", "without replaces") == {Role.SHIPPER}
    assert may(f"{rsm}/CopyLogSegmentData", "with replaces") == {Role.ADMIN}
    assert may(f"{rsm}/OpenLogSegment") == {Role.READER}
    assert may(f"{rsm}/DeleteLogSegmentData") == {Role.DELETER}
    for delete in (f"{update}Batch", update):
        assert may(delete, "DELETE_SEGMENT_STARTED") == {Role.DELETER, Role.SWEEPER}
        assert may(delete, "COPY_SEGMENT_FINISHED") == {Role.SHIPPER}
    assert may(f"{rlmm}/RaiseLogStartOffset") == {Role.DELETER, Role.SWEEPER}
    assert may(f"{rlm}/StopPartitions", "TOPIC_DELETED") == {Role.DELETER}
    assert may(f"{rlmm}/PutTopicConfig", "without now") == {Role.ADMIN}
    assert may(f"{rlmm}/PutTopicConfig", "with now") == {Role.OVERRIDER}
    assert may(f"{rlmm}/ConfirmDeletions") == {Role.OVERRIDER}
    for change in (
        "UndeletePartition",
        "ReplaceSegmentData",
        "ResetLeaderEpoch",
    ):
        assert may(f"{rlmm}/{change}") == {Role.ADMIN}


def test_holds_are_set_and_ended_by_the_roles_of_their_kind() -> None:
    def may(rpc: str, kind: str) -> set[Role]:
        rule = RULES[f"RemoteLogMetadataManager/{rpc}"]
        assert rule.by_value is not None
        return set(rule.by_value.roles[kind])

    for rpc in ("SetHold", "EndHold"):
        assert may(rpc, "OPERATOR") == may(rpc, "REBUILD") == {Role.ADMIN}
        assert may(rpc, "EXPORT") == {Role.EXPORTER, Role.ADMIN}
    assert may("SetHold", "LEGAL") == {Role.ADMIN, Role.COUNSEL}
    assert may("EndHold", "LEGAL") == {Role.COUNSEL}
    assert RULES["RemoteLogMetadataManager/ListHolds"].roles == frozenset(Role)


def test_rsm_deletes_only_for_those_that_mark_or_record_what_they_delete() -> None:
    """RLM and the plugin are deleters, sweeps and reconciliation are sweepers."""
    who_deletes = {Role.DELETER, Role.SWEEPER}
    deletes = [name for name in RULES if name.startswith("RemoteStorageManager/Delete")]
    assert len(deletes) == 3
    for name in [*deletes, "RemoteStorageManager/AbortMultipartUploads"]:
        rule = RULES[name]
        if rule.by_value is None:
            assert rule.roles <= who_deletes
        else:  # An administrator deletes what a whole copy lost its metadata of.
            assert rule.roles <= who_deletes | {Role.ADMIN}


def test_an_auditor_changes_nothing_and_reads_no_records() -> None:
    allowed = {name.split("/")[1] for name, rule in RULES.items() if Role.AUDITOR in rule.roles}
    reads = ("Get", "List", "Scan", "Bin", "Read", "Describe", "IsReady")
    assert all(name.startswith(reads) for name in allowed)
