"""Test that segments go to the first location whose patterns match their topic."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_storage_manager import IndexType
from services.api.segment_objects import ObjectQuery, all_multipart_uploads, all_segment_objects
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.factory import build_locations, build_manager, build_start_up
from services.rsm.layout import CustomMetadata
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.probe import RuleLevel
from services.rsm.settings import RsmSettings
from services.workflows.segment_views import store_views
from tests.contract.remote_storage_manager_contract import (
    Files,
    a_segment,
    copied,
    fetched,
    index,
    replaced,
    some_bytes,
)

FILES = Files(some_bytes(10_000))
Settings = Callable[..., RsmSettings]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings of location 1, beside which 2 and 3 match topics, in this order."""

    def make(two: str = "", three: str = "", **changes: object) -> RsmSettings:
        entries = []
        for number, patterns in ((3, three), (2, two), (1, "")):
            directory = tmp_path / str(number)
            directory.mkdir(exist_ok=True)
            entries.append(
                f'[[location]]\nid = {number}\nbackend = "filesystem"\nprefix = "tier/"\n'
                f'directory = "{directory}"\n' + (f"topics = {patterns}\n" if patterns else "")
            )
        file = tmp_path / "locations.toml"
        file.write_text("\n".join(entries))
        values = {"backend": "filesystem", "directory": tmp_path / "1", "prefix": "tier/"}
        return RsmSettings.model_validate({**values, "locations_file": file, **changes})

    return make


@pytest.fixture
def rsm(settings: Settings) -> Iterator[ObjectRemoteStorageManager]:
    matched = settings(two='["orders", "audit[.].*"]', three='["audit[.]eu"]')
    with closing(build_manager(matched)) as manager:
        manager.check()
        yield manager


def of_topic(topic: str) -> RemoteLogSegmentMetadata:
    segment = a_segment(len(FILES.log))
    tp = TopicIdPartition(segment.topic_id_partition.topic_id, topic, 3)
    return replace(segment, remote_log_segment_id=RemoteLogSegmentId(tp, uuid4()))


def location_of(segment: RemoteLogSegmentMetadata) -> int:
    return CustomMetadata.from_bytes(segment.custom_metadata or b"").location_id


@pytest.mark.parametrize(
    ("topic", "location_id"),
    [
        ("orders", 2),
        ("orders.eu", 1),
        ("my-orders", 1),
        ("audit.us", 2),
        ("audit.eu", 3),
        ("other", 1),
    ],
)
def test_the_first_pattern_in_the_file_that_matches_the_whole_name_decides(
    rsm: ObjectRemoteStorageManager, topic: str, location_id: int, tmp_path: Path
) -> None:
    segment = copied(rsm, FILES, of_topic(topic))
    assert location_of(segment) == location_id
    assert len([*(tmp_path / str(location_id)).rglob("*.manifest")]) == 1
    assert fetched(rsm, segment) == FILES.log
    assert index(rsm, segment, IndexType.OFFSET) == FILES.indexes[IndexType.OFFSET]
    rsm.delete_log_segment_data(segment)
    assert not [*tmp_path.rglob("*.log"), *tmp_path.rglob("*.manifest")]


def test_a_replacement_goes_where_the_replaced_copy_is(
    settings: Settings, rsm: ObjectRemoteStorageManager
) -> None:
    segment = copied(rsm, FILES, of_topic("orders"))
    with closing(build_manager(settings(two='["other"]', three='["orders"]'))) as moved:
        moved.check()
        assert location_of(copied(moved, FILES, of_topic("orders"))) == 3
        again = replaced(moved, segment, FILES)
        assert location_of(again) == 2
        assert fetched(moved, again) == FILES.log
        assert location_of(replaced(moved, copied(rsm, FILES), FILES)) == 1


def test_a_listing_of_no_location_has_all_that_are_written(rsm: ObjectRemoteStorageManager) -> None:
    segment = of_topic("other")
    for topic in ("other", "orders", "audit.eu"):
        # The same id in several locations, as after a change of the patterns.
        tp = replace(segment.topic_id_partition, topic=topic)
        id_ = RemoteLogSegmentId(tp, segment.remote_log_segment_id.id)
        copied(rsm, FILES, replace(segment, remote_log_segment_id=id_))
    listed = list(all_segment_objects(rsm.objects, ObjectQuery()))
    paged = list(all_segment_objects(rsm.objects, ObjectQuery(), page_size=1))
    assert listed == paged
    assert [each.location.key for each in listed] == sorted(each.location.key for each in listed)
    views = list(store_views(listed))
    assert [view.objects[0].location.location_id for view in views] == [1, 2, 3]
    assert all(len(view.objects) == 3 for view in views)
    assert {view.id for view in views} == {segment.remote_log_segment_id.id}
    only = list(all_segment_objects(rsm.objects, ObjectQuery(3)))
    assert only == list(views[2].objects)


def test_unfinished_uploads_of_all_written_locations_are_listed_and_deleted(
    settings: Settings, rsm: ObjectRemoteStorageManager
) -> None:
    locations = build_locations(settings(two='["orders"]'))
    segment = of_topic("orders")
    for location in locations.written:
        location.backend.begin_upload(location.keys(segment).log("00c0ffee00c0ffee"))
    found = list(all_multipart_uploads(rsm.objects, page_size=1))
    assert sorted(each.location.location_id for each in found) == [1, 2]
    rsm.delete_log_segment_data(segment)
    assert not list(all_multipart_uploads(rsm.objects))


def test_each_written_location_is_marked(settings: Settings, tmp_path: Path) -> None:
    ours = settings(two='["orders"]', deployment_id="ours")
    with closing(build_manager(ours)) as rsm:
        rsm.check()
    for number in (1, 2):
        marker = json.loads((tmp_path / str(number) / "tier/.sediment").read_text())
        assert (marker["deployment_id"], marker["location_id"]) == ("ours", number)
    assert not (tmp_path / "3/tier/.sediment").exists()


def test_a_matched_location_that_lost_its_marker_takes_no_copies_until_it_is_back(
    settings: Settings, tmp_path: Path
) -> None:
    ours, now_s = settings(two='["orders"]', deployment_id="ours"), 1000.0
    locations = build_locations(ours)
    start_up = build_start_up(ours, locations, lambda: now_s)
    current, two = locations.written
    with pytest.raises(RetriableRemoteStorageError, match="not checked yet"):
        start_up.require_written(two)
    start_up.check()
    start_up.require_written(two)
    shutil.move(tmp_path / "2/tier", tmp_path / "away")
    start_up.require_written(two)  # It was looked at less than a second ago.
    now_s += 1
    with pytest.raises(RetriableRemoteStorageError, match=r"not ready for location 2 .*no tier/"):
        start_up.require_written(two)
    start_up.check()
    start_up.require_written(current)
    (note,) = [rule for rule in start_up.rules if rule.level is RuleLevel.CRITICAL]
    assert "location 2" in note.text
    assert "copies wait" in note.text
    shutil.move(tmp_path / "away", tmp_path / "2/tier")
    start_up.check()
    with pytest.raises(RetriableRemoteStorageError, match="location 2"):
        start_up.require_written(two)
    now_s += 60
    start_up.check()
    start_up.require_written(two)
    assert all(rule.level is not RuleLevel.CRITICAL for rule in start_up.rules)
