"""A leader moves while it copies, another dies, and the services are rolled: a minute or two of
what test_three_brokers.py tells at length.

All of it happens in the fixture `story`, beside producers and consumers that never rest.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.local.postgres import EmbeddedPostgres
from services.local.seaweedfs import S3Endpoint
from tests.plugin.replicated import NODES
from tests.plugin.scenes import (
    Scene,
    Story,
    kill_a_leader,
    move_leader_while_it_copies,
    roll_services,
)
from tests.plugin.story_checks import (
    assert_acknowledged_are_read_once,
    assert_every_leader_serves_the_same,
    assert_no_consumer_read_a_wrong_record,
    assert_only_aborted_are_omitted,
    assert_tier_and_store_agree,
)
from tests.plugin.three_brokers import running_scene, tell

# The first of them waits for all of the story.
pytestmark = [pytest.mark.plugin, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def scene(
    jar: Path,
    tmp_path_factory: pytest.TempPathFactory,
    postgres: EmbeddedPostgres,
    migrated_database: str,
    s3: S3Endpoint,
) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("brokers")
    with running_scene(jar, directory, postgres, migrated_database, s3, [NODES]) as running:
        yield running


@pytest.fixture(scope="module")
def story(scene: Scene) -> Story:
    def act(story: Story) -> None:
        story.copied_by_both.append(move_leader_while_it_copies(scene, scene.partitions[0]))
        kill_a_leader(scene)
        roll_services(scene, story)

    return tell(scene, act, NODES[:2])


def test_clients_read_each_acknowledged_record_once_as_it_was_sent(story: Story) -> None:
    assert_acknowledged_are_read_once(story, 50)
    assert_only_aborted_are_omitted(story, 0)
    assert_every_leader_serves_the_same(story, 2)
    assert_no_consumer_read_a_wrong_record(story, 1)


def test_nothing_is_left_over_in_the_store(story: Story) -> None:
    assert len(story.copied_by_both) == 1
    assert_tier_and_store_agree(story)


def test_no_call_of_a_broker_fails_while_services_are_rolled(story: Story) -> None:
    assert story.errors_in_the_roll == []
