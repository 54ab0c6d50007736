"""What a test asks RLMM's database beside RLMM."""

from collections.abc import Sequence

from sqlalchemy import Engine, Row, text

from services.api.ids import TopicIdPartition


def waiting(engine: Engine) -> int:
    """How many sessions of this database wait for a lock."""
    with engine.connect() as connection:
        count = connection.scalar(
            text(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )
    assert isinstance(count, int)
    return count


def events(engine: Engine, tp: TopicIdPartition) -> Sequence[Row[*tuple[object, ...]]]:
    """The partition's audit trail, in order."""
    with engine.connect() as connection:
        return connection.execute(
            text("SELECT * FROM events WHERE topic_id = :id AND partition = :p ORDER BY revision"),
            {"id": tp.topic_id, "p": tp.partition},
        ).all()
