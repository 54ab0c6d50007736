"""Add to the local servers what only tests need: databases by name, and free ports."""

from collections.abc import Sequence

from minio.versioningconfig import OFF
from psycopg import sql
from sqlalchemy.engine import make_url

from services.local.postgres import EmbeddedPostgres, scram_verifier
from services.local.process import CANDIDATES, ReservedPorts
from services.local.seaweedfs import S3Endpoint


class DatabaseServer(EmbeddedPostgres):
    """A PostgreSQL server, in which its superuser creates and drops databases."""

    def create_database(self, name: str, template: str = "template1") -> str:
        """Create a database as a copy of `template`, and return its URL."""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        self._execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database and end its connections; a missing one is no error."""
        statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        self._execute(statement.format(sql.Identifier(name)))

    def hasten_logins(self) -> None:
        """Let a login derive its key in one round: in 4096 it takes longer than a short test."""
        url = make_url(self.url("postgres"))
        verifier = scram_verifier(url.password or "", iterations=1)
        statement = sql.SQL("ALTER ROLE {} PASSWORD {}")
        user = sql.Identifier(url.username or "")
        self._execute(statement.format(user, sql.Literal(verifier)))

    def _execute(self, statement: sql.Composed) -> None:
        with self._connect() as connection:
            connection.execute(statement)


def free_ports(count: int, candidates: Sequence[int] = CANDIDATES) -> list[int]:
    """Find free ports without reserving them; choose others if a server cannot start there.

    Raises:
        RuntimeError: fewer than `count` candidates are free.
    """
    reserved = ReservedPorts(count, candidates)
    reserved.release()
    return reserved.ports


def remove_bucket(store: S3Endpoint, name: str) -> None:
    """Remove a bucket with every object in it, in all versions if it keeps them."""
    client = store.client()
    keeps_versions = client.get_bucket_versioning(name).status != OFF
    for item in client.list_objects(name, recursive=True, include_version=keeps_versions):
        client.remove_object(name, str(item.object_name), item.version_id)
    client.remove_bucket(name)
