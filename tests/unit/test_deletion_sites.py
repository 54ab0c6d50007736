"""Hold that no object is deleted before its mark, or its record, is in the audit trail.

The tables name every place of the product that deletes an object, what the trail has by then, and
the test that shows it. Who adds a place adds its row.
"""

import ast
from collections.abc import Collection, Iterator
from typing import NamedTuple

import pytest

from tools.shape import ROOT, every_import_of, modules


class Site(NamedTuple):
    """A function, by module and qualified name, and what it calls."""

    module: str
    function: str
    calls: str


class Proof(NamedTuple):
    """What precedes the deletion, and the test that shows it."""

    before: str
    shown_by: str


BATCH = "delete_log_segment_data_batch"
ONE = "delete_log_segment_data"
FINISH = "finish_deletion"
OBJECTS = "delete_segment_objects"
UPLOADS = "abort_multipart_uploads"
EVERYWHERE = {
    *(ONE, BATCH, OBJECTS, UPLOADS),
    *("DeleteLogSegmentData", "DeleteLogSegmentDataBatch"),
    *("DeleteSegmentObjects", "AbortMultipartUploads"),
    FINISH,
}
"""RSM's delete methods and RPCs, and the function that deletes what its callers have marked."""
AT_THE_STORE = {"delete", "clean_up", "abort_upload", "remove_object", "remove_objects"}
"""What deletes at the store itself: looked for where a store can be reached."""

SUITE = "services.rsm.backends.contract"
SEGMENTS = "DELETE_SEGMENT_STARTED of the segment, with reason, figures and plan, by"
TRAIL = "tests/behaviour/test_deletions_in_the_trail.py"
ORPHANS = (
    "tests/behaviour/test_reconciliation.py"
    "::test_each_deletion_is_an_event_with_the_run_and_the_key"
)

COPIES = "tests/behaviour/test_copy_segments.py"

DECIDES = {
    Site("services.rlm.retention.expiration_task", "ExpirationTask._finish", FINISH): Proof(
        f"{SEGMENTS} begin_deletion of the same pass, or of one that was interrupted",
        f"{TRAIL}::test_retention_of_an_rlm",
    ),
    Site("services.rlm.roles.stopping", "TierDeletion._finish", FINISH): Proof(
        f"{SEGMENTS} mark_segments; it lists what is in that state",
        "tests/behaviour/test_disabled_topics.py"
        "::test_a_disabled_topic_is_deleted_from_the_tier_and_led_as_before",
    ),
    Site("services.workflows.removal", "remove_segments", FINISH): Proof(
        f"{SEGMENTS} begin_deletion; DELETE_PARTITION_MARKED and _STARTED before it",
        f"{TRAIL}::test_removal_of_a_partition",
    ),
    Site("services.cli.partitions", "drop_history", FINISH): Proof(
        f"{SEGMENTS} begin_deletion, with the person's reason",
        "tests/behaviour/test_lost_local_logs.py"
        "::test_what_the_tier_has_of_a_lost_disk_is_named_and_can_be_dropped",
    ),
    Site("spark_jobs.sweeps.execution", "delete_marked", FINISH): Proof(
        f"{SEGMENTS} the stage before: it gets the rows that are MARKED",
        "tests/spark/test_retention_sweep.py::test_each_deletion_is_in_the_trail_with_its_figures",
    ),
    Site("services.workflows.kept_segments", "delete_kept_segments", BATCH): Proof(
        f"{SEGMENTS} the broker, whose mark has the time that has passed; DELETE_SEGMENT_FINISHED",
        "tests/behaviour/test_kept_segments.py::test_kept_objects_are_deleted_when_they_are_due",
    ),
    Site("services.workflows.deletion", FINISH, BATCH): Proof(
        f"{SEGMENTS} begin_deletion, which its callers above have called",
        "tests/behaviour/test_segment_deletion.py"
        "::test_the_log_start_rises_then_segments_are_marked_then_gone_then_confirmed",
    ),
    Site("services.rlm.copy.segment", "SegmentCopier.clean_up", ONE): Proof(
        f"{SEGMENTS} clean_up itself", f"{TRAIL}::test_the_remains_of_a_failed_copy"
    ),
    Site("services.rlm.copy.segment", "SegmentCopier._try_delete_if_abandoned", ONE): Proof(
        f"{SEGMENTS} whoever abandoned the copy: it reads the state first",
        f"{TRAIL}::test_the_remains_of_a_copy_that_another_process_abandoned",
    ),
    Site("services.workflows.segment_repair", "SegmentRepair._replace", BATCH): Proof(
        f"{SEGMENTS} whoever refused the replacement by it",
        "tests/behaviour/test_segment_repair.py"
        "::test_a_segment_that_was_marked_meanwhile_leaves_nothing",
    ),
    Site("services.workflows.adoption", "Adoption.finish", ONE): Proof(
        f"{SEGMENTS} whoever refused the replacement by it",
        f"{COPIES}::test_segment_that_is_deleted_meanwhile_leaves_no_copy",
    ),
    Site("services.workflows.adoption", "delete_sources", BATCH): Proof(
        "the adoption of the segment, whose row names its own copy",
        f"{COPIES}::test_sources_are_deleted_of_adopted_segments_alone",
    ),
    Site("services.workflows.deletion", "OrphanDeletion._delete_if_allowed", OBJECTS): Proof(
        "OBJECT_DELETION of each key, by _record; without a partition that is known, the report "
        "counts it as unrecorded",
        ORPHANS,
    ),
    Site("services.workflows.deletion", "OrphanDeletion._end_uploads", UPLOADS): Proof(
        "OBJECT_DELETION of each key, by _record", ORPHANS
    ),
}
"""Each decides that an object goes, or acts on such a decision in RLMM."""

RSM = "tests/contract/remote_storage_manager_contract.py"
LISTS = "tests/contract/segment_objects_contract.py"
PROBE = "tests/contract/test_rsm_locations_probe.py"
MIRROR = "tests/unit/rsm/test_rsm_mirror.py"
OVER_FILES = "tests/unit/rsm/test_rsm_over_files.py"
_CLIENT, _SERVICER = "services.rpc.client.storage", "services.rsm.servicer"
_READS, _MANAGER = "services.rlm.fetch.reads", "services.rsm.manager"
_CALLED = "its caller's; the roles deleter and sweeper alone may call it"
_OF_ONE = Proof(_CALLED, f"{RSM}::test_delete_removes_every_object")
_OF_MANY = Proof(_CALLED, f"{RSM}::test_a_batch_deletes_every_segment")
_OF_OBJECTS = Proof(_CALLED, f"{LISTS}::test_objects_are_deleted_and_those_that_are_gone_too")
_OF_UPLOADS = Proof(_CALLED, f"{LISTS}::test_incomplete_uploads_are_listed_and_aborted")
_UPLOADS_OF_ONE = Proof(
    _CALLED,
    "tests/contract/test_rsm_locations_registry.py"
    "::test_a_copy_that_never_finished_goes_from_every_location",
)

PASSES_ON = {
    Site(_CLIENT, "RemoteStorageManagerClient", ONE): _OF_ONE,
    Site(_CLIENT, "RemoteStorageManagerClient", BATCH): _OF_MANY,
    Site(_CLIENT, "SegmentObjectsClient", OBJECTS): _OF_OBJECTS,
    Site(_CLIENT, f"SegmentObjectsClient.{UPLOADS}", "AbortMultipartUploads"): _OF_UPLOADS,
    Site(_SERVICER, "RemoteStorageManagerServicer", ONE): _OF_ONE,
    Site(_SERVICER, "RemoteStorageManagerServicer", BATCH): _OF_MANY,
    Site(_SERVICER, "RemoteStorageManagerServicer", OBJECTS): _OF_OBJECTS,
    Site(_SERVICER, "RemoteStorageManagerServicer.AbortMultipartUploads", UPLOADS): _OF_UPLOADS,
    Site(_READS, f"CacheInvalidatingStorage.{ONE}", ONE): _OF_ONE,
    Site(_READS, f"CacheInvalidatingStorage.{BATCH}", BATCH): _OF_MANY,
    Site(_MANAGER, f"ObjectRemoteStorageManager.{ONE}", "delete"): _OF_ONE,
    Site(_MANAGER, f"ObjectRemoteStorageManager.{BATCH}", "delete"): _OF_MANY,
    Site("services.rsm.delete", "SegmentDeleter._delete", "delete"): _OF_MANY,
    Site("services.rsm.delete", "ObjectDeletes._delete", "delete"): _OF_MANY,
    Site("services.rsm.delete", "_listed_keys", "abort_upload"): _UPLOADS_OF_ONE,
    Site("services.rsm.segment_objects", "StoredSegmentObjects._delete", "delete"): _OF_OBJECTS,
    Site("services.rsm.segment_objects", "StoredSegmentObjects._abort", "abort_upload"): (
        _OF_UPLOADS
    ),
    Site("services.rsm.metrics", "MeasuredStorage.delete", "delete"): _OF_MANY,
    Site("services.rsm.mirrored", "MirroredBackend.delete", "delete"): Proof(
        _CALLED, f"{MIRROR}::test_a_deletion_deletes_both_and_waits_for_the_mirror"
    ),
    Site("services.rsm.mirrored", "MirroredBackend.abort_upload", "abort_upload"): _OF_UPLOADS,
    Site("services.rsm.backends.object_store", "ObjectStorage.delete", "delete"): _OF_MANY,
    Site("services.rsm.backends.object_store", "ObjectStorage._delete_each", "delete"): _OF_MANY,
    Site("services.rsm.backends.hdfs", "HdfsStorage.delete", "delete"): _OF_MANY,
    Site("services.rsm.backends.hdfs", "HdfsStorage.abort_upload", "delete"): _OF_UPLOADS,
    Site("services.rsm.metrics", "MeasuredStorage", "abort_upload"): _OF_UPLOADS,
}
"""Each does for a caller what the caller decided."""

_COPY = "nothing: the same call wrote it, no manifest names it, and the copy fails"
_PROBED = "nothing: the same check wrote it, under a name that no segment's object has"

OWN = {
    Site("services.rsm.mirror_copy", "MirrorCopy._take_back", "delete"): Proof(
        "nothing: the same run wrote it to the mirror, and the first has no such segment any more",
        f"{MIRROR}::test_a_segment_that_is_deleted_meanwhile_is_taken_back",
    ),
    Site("services.rsm.mirror_copy", "MirrorCopy._copy", "abort_upload"): Proof(
        "nothing: the same call wrote it, and it is not complete",
        f"{MIRROR}::test_an_upload_to_the_mirror_that_fails_is_ended",
    ),
    Site("services.rsm.copy", "SegmentCopier._remove", "clean_up"): Proof(
        _COPY, f"{OVER_FILES}::test_an_interrupted_copy_leaves_nothing"
    ),
    Site("services.rsm.upload", "ObjectUpload.discard", "abort_upload"): Proof(
        _COPY, f"{RSM}::test_a_source_that_fails_leaves_nothing"
    ),
    Site("services.rsm.leaving", "LocalTieredStorageDirectory._write_file", "abort_upload"): Proof(
        "nothing: the same call wrote it, and it is not complete",
        f"{COPIES}::test_write_that_fails_leaves_no_part_of_a_file",
    ),
    Site("services.workflows.other_topic", "_require_read_only", OBJECTS): Proof(
        "nothing: no object has the etag that it requires",
        "tests/behaviour/test_rebuild_as.py::test_location_that_is_not_read_only_is_refused",
    ),
    Site("services.rsm.probe", "StoreProbe.remove", "delete"): Proof(
        _PROBED, f"{PROBE}::test_a_real_store_can_do_everything_and_nothing_is_left_in_it"
    ),
    Site("services.rsm.probe", "StoreProbe._upload", "abort_upload"): Proof(
        _PROBED, f"{PROBE}::test_a_real_store_can_do_everything_and_nothing_is_left_in_it"
    ),
    Site("services.rsm.probe", "StoreProbe._multi_delete", "delete"): Proof(
        _PROBED, f"{PROBE}::test_a_real_store_can_do_everything_and_nothing_is_left_in_it"
    ),
    Site("services.rsm.backends.s3", "S3Storage._try_abort", "abort_upload"): Proof(
        _PROBED,
        f"{PROBE}::test_an_upload_begun_to_try_the_store_that_cannot_be_ended_hides_nothing",
    ),
    Site("services.rsm.backends.hdfs", "HdfsStorage._write", "abort_upload"): Proof(
        "nothing: the same call wrote it, and it is not complete",
        "services/rsm/backends/contract.py::test_an_object_is_replaced_only_if_it_is_as_seen",
    ),
    Site("services.local.seaweedfs", "SeaweedFS._is_ready", "remove_object"): Proof(
        "nothing: an object of a bucket of its own, in the embedded store",
        "tests/deep/test_seaweedfs.py::test_all_that_was_acknowledged_survives_a_kill_on_the_same_ports",
    ),
    Site("spark_jobs.connections", "Services.require_reachable", BATCH): Proof(
        "nothing: an empty batch, which RSM refuses",
        f"{RSM}::test_a_batch_of_no_or_too_many_segments_is_refused",
    ),
}
"""Each deletes what the same call has written itself, or nothing."""

TABLE = {**DECIDES, **PASSES_ON, **OWN}


def sites() -> Iterator[Site]:
    # The suite of stores is tests, and test_imports.py holds that nothing imports it.
    for name, path in modules().items() - {(SUITE, modules()[SUITE])}:
        reaches = name.startswith("services.rsm.") or any(
            wanted.startswith(("services.rsm.", "minio")) for wanted in every_import_of(name)
        )
        names = EVERYWHERE | AT_THE_STORE if reaches else EVERYWHERE
        yield from _in_module(name, ast.parse(path.read_text()), names)


def _in_module(
    module: str, tree: ast.AST, names: Collection[str], within: tuple[str, ...] = ()
) -> Iterator[Site]:
    for node in ast.iter_child_nodes(tree):
        inner = within
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inner = (*within, node.name)
        match node:
            case ast.Attribute(attr=name) if name in names:
                yield Site(module, ".".join(inner), name)
            case ast.Name(id=name, ctx=ast.Load()) if name in EVERYWHERE:
                yield Site(module, ".".join(inner), name)
        yield from _in_module(module, node, names, inner)


@pytest.mark.deep  # It parses all modules.
def test_each_place_that_deletes_an_object_is_in_the_table() -> None:
    assert set(sites()) == TABLE.keys()


def test_each_row_names_a_test() -> None:
    for proof in TABLE.values():
        file, name = proof.shown_by.split("::")
        assert f"def {name}(" in (ROOT / file).read_text(), proof
