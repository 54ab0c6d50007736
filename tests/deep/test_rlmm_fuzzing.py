"""Whatever RLMM is asked, by whomever: it refuses in our words, by the field, and nothing changes.

Every RPC of the service is asked, found by its descriptor: a new one is covered without a change
here. Each run asks the same; `python -m tests.deep.fuzzing` asks other things, and at length.
"""

import sys
from collections.abc import Iterator
from uuid import uuid4

import pytest
from google.protobuf.descriptor import MethodDescriptor

from services.api.ids import TopicIdPartition
from services.local.postgres import EmbeddedPostgres
from tests.deep.fuzzing.calling import METHODS
from tests.deep.fuzzing.campaign import Target, fuzz
from tests.deep.fuzzing.targets import running_target

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

SEED = 405
EXAMPLES = 25
"""Of each RPC: half a minute for all of them, and much longer on a busy machine."""
LEAST_BEYOND_VALIDATION = 0.2
"""Of the calls of each RPC; of all of them it is more than half."""

ANYBODY = TopicIdPartition(uuid4(), "orders", 0)


@pytest.fixture(scope="module")
def target(
    postgres: EmbeddedPostgres, migrated_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    name = "rlmm_fuzzing"
    url = postgres.create_database(name, template=migrated_database)
    with running_target(url, tmp_path_factory.mktemp("rlmm")) as target:
        yield target
    postgres.drop_database(name)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_what_is_refused_is_refused_in_our_words_and_changes_nothing(
    target: Target, method: MethodDescriptor
) -> None:
    again = f"--rpc {method.name} --seed {SEED} --examples {EXAMPLES}"
    sys.stdout.write(f"python -m tests.deep.fuzzing {again}\n")
    tally = fuzz(target, method, SEED, EXAMPLES)
    sys.stdout.write(f"{tally}\n")
    assert not tally.is_served or tally.share_beyond_validation >= LEAST_BEYOND_VALIDATION
    assert target.client.is_ready(ANYBODY)
