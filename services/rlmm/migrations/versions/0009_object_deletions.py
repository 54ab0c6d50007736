"""Add the kind of events that record which objects reconciliation deletes.

The previous release runs on this schema: it reads a kind as text. An interrupted migration starts
again from its beginning, so every statement may run twice.
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

EVENT_KINDS = """kind IN ('LEADERSHIP', 'SEGMENT', 'PARTITION_DELETE', 'LINEAGE', 'LOG_START',
    'GAP', 'LEADER_EPOCH_RESET', 'OBJECT_DELETION')"""


def upgrade() -> None:
    # ACCESS EXCLUSIVE on events for a moment: changes wait. Existing rows are not checked yet.
    op.execute("ALTER TABLE events DROP CONSTRAINT IF EXISTS ck_events_kind")
    op.execute(f"ALTER TABLE events ADD CONSTRAINT ck_events_kind CHECK ({EVENT_KINDS}) NOT VALID")
    # SHARE UPDATE EXCLUSIVE: reads and writes continue, for as long as the table takes to be read.
    with op.get_context().autocommit_block():
        op.execute("SET statement_timeout = '2h'")
        op.execute("ALTER TABLE events VALIDATE CONSTRAINT ck_events_kind")
        op.execute("SET statement_timeout = '1min'")
