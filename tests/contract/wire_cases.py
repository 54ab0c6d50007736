"""List the cases that `make test` runs over gRPC: one for each RPC. `make test-deep` runs all.

In process every case of a contract runs each time; what the wire adds is conversion, and that one
case for each RPC shows, together with the round trip of every error (test_rpc_errors.py).
"""

RLMM = {
    "AddRemoteLogSegmentMetadata": "test_any_other_text_is_stored",
    "AddRemoteLogSegmentMetadataBatch": "test_copies_of_several_partitions_begin_at_once",
    "RenewCopyLeases": "test_the_reason_of_a_lost_lease_is_returned",
    "UpdateRemoteLogSegmentMetadata": "test_request_ids_are_remembered_with_their_outcomes",
    "UpdateRemoteLogSegmentMetadataBatch": "test_custom_metadata_is_kept_replaced_and_checked",
    "GetRemoteLogSegmentMetadata": "test_a_partition_by_another_topic_name_is_refused",
    "GetRemoteLogSegmentMetadataBatch": "test_each_look_up_is_answered_as_if_it_came_alone",
    "GetRemoteLogSegmentMetadataById": (
        "test_segments_are_found_in_any_state_ascending_by_start_offset"
    ),
    "GetEarliestLogOffset": "test_the_earliest_offset_is_that_of_the_first_finished_segment",
    "GetHighestOffsetForEpoch": "test_segments_side_by_side_are_both_found",
    "PutRemotePartitionDeleteMetadata": "test_segments_are_found_until_the_partition_is_deleted",
    "ListRemoteLogSegments": "test_a_known_empty_partition_lists_empty",
    "ListKeptSegments": "test_pages_of_kept_segments_follow_each_other",
    "GetRemoteLogSize": "test_a_segment_that_spans_epochs_counts_whole_in_each",
    "GetNextSegmentWithTxnIndex": "test_segments_without_a_transaction_index_are_passed_over",
    "IsReady": "test_a_migrated_database_is_ready_for_any_partition",
    "OnPartitionLeadershipChanges": "test_the_calls_epoch_counts_before_the_segments",
    "OnStopPartitions": "test_stopping_touches_no_metadata",
    "AnnounceEndpoint": "test_an_announcement_lists_the_live_ones_of_its_cluster",
    "ListPartitions": "test_pages_of_partitions_follow_each_other",
    "GetPartitionRevisions": "test_revisions_are_in_the_order_of_the_partitions",
    "WatchPartitions": "test_a_watch_resumes_at_the_revision_that_the_client_knows",
    "GetTopicConfig": "test_texts_of_settings_are_stored_unchanged",
    "PutTopicConfig": "test_a_put_replaces_everything",
    "ReportPartitionState": "test_a_report_makes_the_partition_known_and_is_its_state",
    "GetPartitionState": "test_a_later_report_replaces_the_earlier_one",
    "RaiseLogStartOffset": "test_finished_segments_count_if_the_report_is_behind",
    "ScanRemoteLogSegments": "test_a_batch_has_the_columns_of_the_contract",
    "BinRemoteLogSegments": "test_many_segments_are_joined_into_few_bins",
    "RecordGap": "test_a_gap_hides_nothing_and_raises_nothing",
    "SetHold": "test_a_position_keeps_what_ends_at_or_above_it",
    "EndHold": "test_a_lease_is_ended",
    "ListHolds": "test_all_are_listed_page_by_page",
    "ListEvents": "test_events_come_in_pages_without_gaps",
    "ReportAnomalies": "test_anomaly_is_stored_unchanged",
    "ListAnomalies": "test_pages_follow_each_other_the_first_seen_first",
    "ReportToolRun": "test_a_run_over_a_topic_is_the_sum_of_its_parts",
    "ListToolRuns": "test_pages_of_runs_follow_each_other",
    "RecordObjectDeletions": "test_each_deleted_object_is_an_event_with_its_key",
    "ImportRemoteLogSegments": "test_segments_finish_in_the_order_in_which_they_come",
    "ListSourcePositions": "test_a_source_moves_with_what_is_imported",
    "UndeletePartition": "test_it_can_be_marked_again_and_a_repeat_returns_the_latest_mark",
    "ReplaceSegmentData": "test_a_replaced_segment_stays_finished_with_the_new_bytes",
    "ResetLeaderEpoch": "test_the_epoch_that_it_has_is_a_repeat",
    "ConfirmDeletions": "test_confirmed_deletions_pass_the_bound_until_the_settings_change",
}

RSM = {
    "CopyLogSegmentData": "test_log_of_several_parts_is_fetched_byte_for_byte",
    "FetchLogSegment": "test_a_range_across_parts_is_whole",
    "OpenLogSegment": "test_direct_reads_are_off_unless_they_are_set",
    "FetchIndex": "test_each_index_is_fetched_byte_for_byte",
    "DeleteLogSegmentData": "test_delete_removes_every_object",
    "DeleteLogSegmentDataBatch": "test_a_batch_deletes_every_segment",
    "FindPartitionObject": "test_an_object_of_a_partition_is_found_until_none_is_left",
}

SEGMENT_OBJECTS = {
    "ListSegmentObjects": "test_a_copy_is_three_objects_with_its_names_and_sizes",
    "ReadSegmentManifest": "test_manifest_has_the_digests_of_the_copied_files",
    "DeleteSegmentObjects": "test_objects_are_deleted_and_those_that_are_gone_too",
    "ListMultipartUploads": "test_incomplete_uploads_are_listed_and_aborted",
    "AbortMultipartUploads": "test_an_upload_must_have_an_id",
    "RewrapKeys": "test_without_a_ring_no_segment_has_a_key",
    "PutDeploymentState": "test_a_state_has_a_name_of_its_form_and_a_bound",
    "GetDeploymentState": "test_a_state_has_a_name_of_its_form_and_a_bound",
}

RLM_LIFECYCLE = {
    "OnLeadershipChange": "test_roles_are_taken_on_in_order",
    "StopPartitions": "test_topic_deleted_marks_once",
}
