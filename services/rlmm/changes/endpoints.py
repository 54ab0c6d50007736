"""Announce where the RLMs of a cluster are reached, each with a lease."""

from dataclasses import asdict
from uuid import UUID

from sqlalchemy import Connection

from services.api.endpoints import RlmEndpoint
from services.api.errors import ConcurrentUpdateError
from services.rlmm.database.db import execute

# Rows of brokers that are gone. Those that another announcement has locked, it deletes.
_PURGE = """
    DELETE FROM rlm_endpoints WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM rlm_endpoints WHERE lease_until < clock_timestamp() - interval '1 day'
        FOR UPDATE SKIP LOCKED))"""
_ANNOUNCE = """
    INSERT INTO rlm_endpoints AS known
        (cluster_id, directory_id, broker_id, address, listener, instance_id, lease_until)
    VALUES (%(cluster_id)s, %(directory_id)s, %(broker_id)s, %(address)s, %(listener)s,
        %(instance_id)s, clock_timestamp() + %(lease_ms)s * interval '1 millisecond')
    ON CONFLICT (cluster_id, directory_id) DO UPDATE SET
        broker_id = excluded.broker_id, address = excluded.address, listener = excluded.listener,
        instance_id = excluded.instance_id, lease_until = excluded.lease_until
    WHERE known.instance_id = excluded.instance_id OR known.lease_until <= clock_timestamp()
    RETURNING true"""
_HOLDER = """
    SELECT address FROM rlm_endpoints
    WHERE cluster_id = %(cluster_id)s AND directory_id = %(directory_id)s"""
# A broker whose disk was replaced has a row of each directory until the first one's lease ends.
_LIVE = """
    SELECT DISTINCT ON (broker_id) cluster_id, directory_id, broker_id, address, listener
    FROM rlm_endpoints
    WHERE cluster_id = %(cluster_id)s AND lease_until > clock_timestamp()
    ORDER BY broker_id, lease_until DESC"""


def announce(
    connection: Connection, endpoint: RlmEndpoint, instance_id: UUID, lease_ms: int
) -> list[RlmEndpoint]:
    """Announce an endpoint; see RemoteLogMetadataManager.announce_endpoint."""
    values = {**asdict(endpoint), "instance_id": instance_id, "lease_ms": lease_ms}
    execute(connection, _PURGE, {})
    if execute(connection, _ANNOUNCE, values).fetchone() is None:
        holder = execute(connection, _HOLDER, values).fetchone()
        raise ConcurrentUpdateError(
            f"broker {endpoint.broker_id} of cluster {endpoint.cluster_id}: another RLM, at "
            f"{holder.address if holder else 'an unknown address'}, has announced its log "
            f"directory {endpoint.directory_id}; stop one of them, or wait until its lease ends"
        )
    return [RlmEndpoint(*row) for row in execute(connection, _LIVE, values).fetchall()]
