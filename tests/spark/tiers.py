"""Run a deployment of its own, as processes, and fill it, for the tests here."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from services.api.ids import TopicIdPartition
from services.common.client_security import PLAINTEXT, ClientSecurity
from services.local.stack import ServiceProcess, rlmm_settings, rsm_settings, settings_of
from services.rlmm.database.engine import DatabaseLimits, create_database_engine
from tests.harness.databases import Stores
from tests.harness.tier import HOUR_MS, SmallTier, Tier, a_topic, running_tier


@contextmanager
def new_tier(
    directory: Path,
    stores: Stores,
    more: Mapping[str, str] | None = None,
    security: ClientSecurity = PLAINTEXT,
) -> Iterator[Tier]:
    """Run RSM and RLMM on a new bucket and database.

    Args:
        more: further settings, RSM_* and RLMM_*; plaintext without them.
        security: of the test's own clients.
    """
    with stores.new("spark") as (database_url, s3, bucket):
        of_rsm = {**rsm_settings(s3, bucket, ""), **settings_of("rsm", more or {})}
        of_rlmm = {**rlmm_settings(database_url), **settings_of("rlmm", more or {})}
        rsm = ServiceProcess("rsm", of_rsm, directory / "rsm")
        rlmm = ServiceProcess("rlmm", of_rlmm, directory / "rlmm")
        no_limit = DatabaseLimits(idle_in_transaction_timeout_ms=0)
        engine = create_database_engine(database_url, no_limit, "tests")
        with running_tier(rsm, rlmm, s3, bucket, engine, security) as made:
            yield made
        engine.dispose()


def due_partitions(tier: SmallTier, segments: int, partitions: int = 1) -> list[TopicIdPartition]:
    """Make a topic of which a retention sweep deletes every segment."""
    made = a_topic(partitions=partitions)
    for tp in made:
        tier.fill(tp, segments)
        tier.report(tp, segments)
    tier.settings(made[0].topic_id, {"retention.ms": str(HOUR_MS)})
    return made
