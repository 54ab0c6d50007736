"""RLMM in process, on PostgreSQL: satisfies services.api's RemoteLogMetadataManager."""

from typing import TYPE_CHECKING

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.rlmm.managing.anomalies import SqlAnomalies
from services.rlmm.managing.copy_leases import SqlCopyLeases
from services.rlmm.managing.partition_changes import SqlPartitionChanges
from services.rlmm.managing.partition_queries import SqlPartitionQueries
from services.rlmm.managing.partition_repairs import SqlPartitionRepairs
from services.rlmm.managing.segment_changes import SqlSegmentChanges
from services.rlmm.managing.segment_imports import SqlSegmentImports
from services.rlmm.managing.segment_queries import SqlSegmentQueries
from services.rlmm.managing.topic_configs import SqlTopicConfigs
from services.rlmm.schema import is_usable, known_revision


class SqlRemoteLogMetadataManager(
    SqlSegmentChanges,
    SqlCopyLeases,
    SqlSegmentQueries,
    SqlSegmentImports,
    SqlPartitionChanges,
    SqlPartitionQueries,
    SqlPartitionRepairs,
    SqlTopicConfigs,
    SqlAnomalies,
):
    """The contract is the Protocol's. Any number may run beside each other.

    The schema is made by services.rlmm.schema.upgrade, never here."""

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        try:
            self.check()
        except RemoteStorageError:
            return False
        return True

    def check(self) -> None:
        """Is the database usable at all?

        Raises:
            RetriableRemoteStorageError: it is unreachable, or its schema is older than this
                release's.
        """
        try:
            revision = self._schema_revision()
        except RetriableRemoteStorageError as e:
            raise RetriableRemoteStorageError(f"{self._database}: {e}") from e
        if not is_usable(revision):
            raise RetriableRemoteStorageError(
                f"{self._database}: the database has schema revision {revision}, this release "
                f"needs {known_revision()}; `sediment db upgrade` makes it"
            )

    def _schema_revision(self) -> str | None:
        """As it is asked for every second, without Alembic: what that does first takes 10 ms."""
        has_schema = self._transactions.read_row("SELECT to_regclass('alembic_version')", {})
        if has_schema.to_regclass is None:
            return None
        row = self._transactions.read_row("SELECT version_num FROM alembic_version", {})
        return None if row is None else str(row.version_num)


if TYPE_CHECKING:

    def _satisfies(manager: SqlRemoteLogMetadataManager) -> RemoteLogMetadataManager:
        return manager
