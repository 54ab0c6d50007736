"""Three brokers tier through the plugin while leaders move, brokers die and lose their disks, and
services restart: clients see each acknowledged record once, and nothing is left over.

All of it happens in the fixture `story`, beside producers and consumers that never rest.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.local.postgres import EmbeddedPostgres
from services.local.seaweedfs import S3Endpoint
from tests.harness.eventually import eventually_holds
from tests.plugin.deployment import DEADLINE_MS
from tests.plugin.replicated import NODES
from tests.plugin.scenes import (
    Scene,
    Story,
    elect_preferred_leaders_in_a_storm,
    kill_a_leader,
    lose_records_by_an_unclean_election,
    move_leader_while_it_copies,
    reassign_to_fewer_and_back,
    roll_services,
    stop_all_services,
    wipe_a_leader,
)
from tests.plugin.story_checks import (
    assert_acknowledged_are_read_once,
    assert_every_leader_serves_the_same,
    assert_no_consumer_read_a_wrong_record,
    assert_only_aborted_are_omitted,
    assert_tier_and_store_agree,
)
from tests.plugin.three_brokers import running_scene, tell

# All of the story happens before its first test: ten minutes of two processors.
pytestmark = [pytest.mark.plugin, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def scene(
    jar: Path,
    tmp_path_factory: pytest.TempPathFactory,
    postgres: EmbeddedPostgres,
    migrated_database: str,
    s3: S3Endpoint,
) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("brokers")
    replicas = [NODES, NODES[::-1]]
    with running_scene(jar, directory, postgres, migrated_database, s3, replicas) as running:
        yield running


@pytest.fixture(scope="module")
def story(scene: Scene) -> Story:
    def act(story: Story) -> None:
        story.copied_by_both = [
            move_leader_while_it_copies(scene, partition)
            for _ in range(2)
            for partition in scene.partitions
        ]
        kill_a_leader(scene)
        story.first_offsets_after_wipe = wipe_a_leader(scene)
        elect_preferred_leaders_in_a_storm(scene)
        reassign_to_fewer_and_back(scene)
        lose_records_by_an_unclean_election(scene, story)
        stop_all_services(scene)
        roll_services(scene, story)

    return tell(scene, act)


# --- what came of it ----------------------------------------------------------------------------


def test_every_acknowledged_record_is_read_once_as_it_was_sent(story: Story) -> None:
    assert_acknowledged_are_read_once(story, 200)


def test_read_committed_omits_only_aborted_records(story: Story) -> None:
    assert_only_aborted_are_omitted(story, 20)


def test_every_broker_serves_the_same_as_leader(story: Story) -> None:
    assert_every_leader_serves_the_same(story, len(NODES))


def test_no_consumer_read_a_wrong_record(story: Story) -> None:
    assert_no_consumer_read_a_wrong_record(story, 4)


def test_tier_has_segments_of_every_leader(story: Story) -> None:
    assert len(story.copied_by_both) == 2 * len(story.partitions)
    for partition in story.partitions:
        assert {row.broker_id for row in partition.finished()} == set(NODES), partition


def test_wiped_broker_fetches_only_offsets_above_the_tier(story: Story) -> None:
    wiped = zip(story.partitions, story.first_offsets_after_wipe, strict=True)
    for partition, (latest_tiered, first_local) in wiped:
        assert latest_tiered > 0, partition
        assert first_local > latest_tiered, partition
        assert partition.finished()[0].start_offset == 0, partition


def test_unclean_election_loses_records_that_the_new_leader_lacks(story: Story) -> None:
    assert story.unclean_reads == [story.without_the_lost] * 2


def test_no_call_of_a_broker_fails_while_services_are_rolled(story: Story) -> None:
    assert story.errors_in_the_roll == []


def test_every_object_has_a_row_and_every_finished_row_its_objects(story: Story) -> None:
    assert_tier_and_store_agree(story)


def test_the_deleted_topic_leaves_nothing(scene: Scene, story: Story) -> None:
    scene.deployment.cluster.delete(story.partitions[0].name.topic)
    for partition in story.partitions:
        eventually_holds(partition.assert_nothing_is_left, DEADLINE_MS)
