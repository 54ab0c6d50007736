from uuid import uuid4

from services.api.ids import TopicIdPartition
from services.cli.ship import ShipBar

MIB = 1024 * 1024


def test_bar_does_not_show_the_size_found_so_far_as_the_total() -> None:
    topic_id = uuid4()
    first, second = (TopicIdPartition(topic_id, "orders", number) for number in range(2))
    bar = ShipBar()
    bar.planned(first, 2, 2 * MIB)
    bar.sent(first, MIB)
    bar.copied(first, 0, MIB)
    assert bar.text() == "shipped 1 segments; 2.0 MiB found to ship so far"
    bar.planned(second, 3, 3 * MIB)
    assert bar.text() == "shipped 1 segments; 5.0 MiB found to ship so far"
