"""The id by which a deployment knows its objects again: RSM's setting RSM_DEPLOYMENT_ID."""

from uuid import UUID

from sqlalchemy import select

from services.api.errors import RemoteStorageError
from services.rlmm.schema import connected, is_usable, known_revision, revision_in
from services.rlmm.tables import DeploymentRow


def deployment_id(database_url: str) -> UUID:
    """The id that the schema's upgrade made with the database; it never changes.

    Raises:
        RetriableRemoteStorageError: the database cannot be reached.
        RemoteStorageError: its schema has none yet.
    """
    with connected(database_url) as connection:
        if not is_usable(revision_in(connection)):
            needed = f"the schema is older than {known_revision()}"
            raise RemoteStorageError(f"{needed}: `sediment db upgrade` makes the id")
        found: UUID | None = connection.scalar(select(DeploymentRow.deployment_id))
    if found is None:
        raise RemoteStorageError("the table deployment has lost its row")
    return found
