"""Check that docs/reference/metrics.md matches the metrics' declarations."""

from pathlib import Path

from prometheus_client import REGISTRY

from services.common.fair_queue import FairQueue
from services.common.retry import Backoff
from services.rlm.collectors import LastSuccessCollector, PoolCollector, TopicCollector
from services.rlm.metrics import (
    TopicCounts,
)
from services.rlm.partition import Lag, new_partition
from services.rlm.scheduler import Scheduler
from tests.unit.rlm.kafka_bytes import NAME
from tools.reference import PREFIX, metrics_markdown

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def described() -> list[str]:
    """Return every family of metrics that a scrape of a process would show."""
    partition = new_partition(NAME, None, None, None)  # type: ignore[arg-type]  # asked nothing
    partition.copy.lag = Lag(1, 1, 0, 1)
    lane = Scheduler(Backoff(1.0, 1.0)).lane("test", 1, 1.0)
    collectors = (
        REGISTRY,
        TopicCollector(lambda: [partition]),
        PoolCollector([lane], FairQueue("reads", 1)),
        TopicCounts(),
        LastSuccessCollector([lane]),
    )
    return [family.name for collector in collectors for family in collector.collect()]


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text().strip() == metrics_markdown().strip(), "run `make docs`"


def test_every_scraped_metric_is_on_the_page() -> None:
    page = metrics_markdown()
    ours = [name for name in described() if name.startswith(PREFIX)]
    assert len(ours) > 10
    assert [name for name in ours if f"| `{name}" not in page] == []


def test_every_metric_has_a_description() -> None:
    rows = [line for line in metrics_markdown().splitlines() if line.startswith("| `")]
    assert [row for row in rows if not row.split("|")[4].strip()] == []
