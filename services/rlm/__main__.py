"""Run the RLM process (`python -m services.rlm`)."""

from contextlib import ExitStack
from functools import partial

import grpc
from prometheus_client import REGISTRY

from services.api.errors import InvalidRequestError
from services.common.addresses import reachable, split_address
from services.common.client_security import PLAINTEXT, ClientSecurity
from services.common.fair_queue import QuotaLimit
from services.common.log import configure_logging
from services.common.reloaded_file import FileError
from services.common.retry import Backoff
from services.rlm.collectors import LastSuccessCollector, PoolCollector, TopicCollector
from services.rlm.consumers.listener import ConsumerLimits, ConsumerListener
from services.rlm.copy.rules import CopyLagDefaults
from services.rlm.copy.segment import CopyLimits
from services.rlm.fetch.index_files import IndexFileLimits
from services.rlm.fetch.read_ahead import RANGE_BYTES
from services.rlm.fetch.reads import ReadLimits
from services.rlm.kafka_admin.beside import BrokerBeside
from services.rlm.kafka_admin.client import KafkaAdmin
from services.rlm.kafka_admin.local_records import LocalRecordsAdmin
from services.rlm.kafka_admin.poller import PolledCluster
from services.rlm.kafka_admin.security import KafkaSecurityError
from services.rlm.kafka_log.log_dir import free_bytes, read_cluster_id
from services.rlm.kafka_log.partition_dir import LogDirError
from services.rlm.lanes import FIRST_RETRY_S
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from services.rlm.metrics import (
    DIRECT_READ_BYTES,
    DIRECT_READ_FAILURES,
    LOG_DIRS_FREE_BYTES,
)
from services.rlm.retention.local_trims import LocalRetention
from services.rlm.servicer import add_to_server
from services.rlm.settings import RlmSettings
from services.rpc.client.channel import open_channel
from services.rpc.client.direct import DirectReader
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rpc.server.server import Service, serve
from services.rpc.server.sockets import SocketAccess


def main() -> None:
    settings = RlmSettings.to_serve()
    configure_logging(settings.log_level)
    with ExitStack() as channels:
        rsm, rlmm = (
            channels.enter_context(_open_channel(address, settings))
            for address in (settings.rsm_address, settings.rlmm_address)
        )
        admin = _kafka_admin(settings)
        manager = _build_manager(
            settings,
            admin,
            RemoteStorageManagerClient(rsm, settings.rsm_address),
            RemoteLogMetadataManagerClient(rlmm, settings.rlmm_address),
        )
        REGISTRY.register(LastSuccessCollector(manager.scheduler.lanes))
        REGISTRY.register(TopicCollector(manager.led_partitions))
        REGISTRY.register(PoolCollector(manager.scheduler.lanes, manager.tier_calls.queue))
        REGISTRY.register(manager.topic_counts)
        if settings.log_dirs:
            free = partial(free_bytes, settings.log_dirs)
            LOG_DIRS_FREE_BYTES.labels(manager.broker_id).set_function(free)
        listener = _consumer_listener(settings, manager, admin)
        manager.start()
        if listener is not None:
            listener.start()

        def end_waits() -> None:
            manager.end_waits()
            if listener is not None:  # Without waits its consumers would fetch without a pause.
                listener.stop()

        def stop() -> None:
            if listener is not None:
                listener.stop()
            manager.stop(settings.drain_timeout_ms / 1000)

        name = "tieredstorage.v1.RemoteLogManager"
        service = Service(
            "rlm",
            name,
            partial(add_to_server, manager),
            _always_ready,
            stop,
            end_watches=end_waits,
            listens=lambda address: manager.announce(
                settings.advertised_address or reachable(address),
                reachable(listener.advertised) if listener else None,
            ),
        )
        serve(service, settings)


def _open_channel(address: str, settings: RlmSettings) -> grpc.Channel:
    """Open a channel with RLM's own certificate, or in plaintext if RLM serves plaintext."""
    security = PLAINTEXT
    if settings.has_tls:
        security = ClientSecurity(
            ca=settings.tls_server_ca_file or settings.tls_client_ca_file,
            certificate=settings.tls_certificate_file,
            key=settings.tls_key_file,
        )
    try:
        return open_channel(address, security)
    except InvalidRequestError as e:
        raise SystemExit(str(e)) from e


def _consumer_listener(
    settings: RlmSettings, manager: BrokerRemoteLogManager, admin: KafkaAdmin | None
) -> ConsumerListener | None:
    """Listen for consumers, with gRPC's transport and policy; None without an address."""
    if settings.consumer_listen_address is None:
        return None
    advertised = settings.consumer_advertised_address
    beside, access = _beside(settings, manager, admin), None
    try:
        if settings.has_tls:
            logs_in = beside is not None and beside.needs_login
            access = SocketAccess(settings, "RemoteLogManager", needs_certificates=not logs_in)
        return ConsumerListener(
            manager,
            split_address(settings.consumer_listen_address),
            access,
            max(manager.broker_id, 0),
            split_address(advertised) if advertised else None,
            ConsumerLimits(
                settings.consumer_max_connections,
                settings.consumer_fetch_max_bytes,
                settings.consumer_idle_timeout_ms / 1000,
            ),
            manager.readers,
            beside,
        )
    except FileError as e:
        raise SystemExit(f"cannot start: {e}") from e
    except OSError as e:
        address = settings.consumer_listen_address
        raise SystemExit(
            f"cannot listen on {address} for consumers: {e}; change RLM_CONSUMER_LISTEN_ADDRESS"
        ) from e


def _beside(
    settings: RlmSettings, manager: BrokerRemoteLogManager, admin: KafkaAdmin | None
) -> BrokerBeside | None:
    """Return the way to the broker whose log directories RLM reads; None if it knows of none."""
    if admin is None or manager.broker_id < 0:
        return None
    return BrokerBeside(
        admin,
        manager.broker_id,
        settings.kafka_security(),
        may_send_plaintext=not settings.has_tls,
    )


def _always_ready() -> None:
    """Report readiness at all times, because local reads need neither store nor database.

    Reads of the tier return their own errors.
    """


def _build_manager(
    settings: RlmSettings,
    admin: KafkaAdmin | None,
    rsm: RemoteStorageManagerClient,
    rlmm: RemoteLogMetadataManagerClient,
) -> BrokerRemoteLogManager:
    limits = RlmLimits(
        interval_s=settings.remote_log_manager_task_interval_ms / 1000,
        copier_threads=settings.remote_log_manager_copier_thread_pool_size,
        expiration_threads=settings.remote_log_manager_expiration_thread_pool_size,
        remover_interval_s=settings.remote_partition_remover_task_interval_ms / 1000,
        deletion_grace_ms=settings.deletion_grace_ms,
        tiered_topics=settings.tiered_topics,
        backoff=Backoff(
            initial_s=FIRST_RETRY_S,
            max_s=settings.remote_log_manager_task_retry_backoff_max_ms / 1000,
        ),
        copy=CopyLimits(lease_ms=settings.copy_lease_ms),
        read=ReadLimits(
            threads=settings.remote_log_reader_threads,
            wait_s=settings.remote_fetch_max_wait_ms / 1000,
            max_waiting=settings.remote_log_reader_max_pending_tasks,
            recent_s=settings.metadata_max_age_ms / 1000,
            stale_s=settings.metadata_stale_reads_ms / 1000,
            quota=QuotaLimit(
                max_bytes_per_second=settings.remote_log_manager_fetch_max_bytes_per_second
            ),
            list_offsets_timeout_s=settings.remote_list_offsets_request_timeout_ms / 1000,
            # Delayed fetches leave as many threads to others.
            max_delayed_fetches=max(settings.stream_threads // 2, 1),
            chunk_memory_bytes=settings.remote_log_chunk_cache_memory_bytes,
            index_memory_bytes=settings.remote_log_index_cache_memory_bytes,
            index_files=_index_files(settings),
        ),
        copy_lag=CopyLagDefaults(
            ms=settings.log_remote_copy_lag_ms, size_bytes=settings.log_remote_copy_lag_bytes
        ),
        local_retention=LocalRetention(
            settings.log_local_retention_ms, settings.log_local_retention_bytes
        ),
        copy_quota=QuotaLimit(
            max_bytes_per_second=settings.remote_log_manager_copy_max_bytes_per_second
        ),
    )
    try:
        return BrokerRemoteLogManager(
            settings.log_dirs,
            rsm,
            rlmm,
            limits,
            source=settings.partition_source,
            logs=direct_reader(rsm) if settings.direct_reads else None,
            cluster=None if admin is None else _cluster(settings, admin),
        )
    except LogDirError as e:
        raise SystemExit(f"RLM_LOG_DIRS: {e}") from e


def direct_reader(rsm: RemoteStorageManagerClient) -> DirectReader:
    """Create RLM's reader of the store itself."""
    # Those of readers that are not sequential are shorter: as in the plugin, RSM streams them.
    shortest_bytes = RANGE_BYTES // 2
    return DirectReader(rsm, DIRECT_READ_BYTES.inc, DIRECT_READ_FAILURES.inc, shortest_bytes)


def _index_files(settings: RlmSettings) -> IndexFileLimits | None:
    directory = settings.remote_log_index_file_cache_dir
    if directory is None:
        return None
    ttl_ms = settings.remote_log_index_file_cache_ttl_ms
    return IndexFileLimits(
        directory=directory,
        total_bytes=settings.remote_log_index_file_cache_total_size_bytes,
        ttl_s=None if ttl_ms < 0 else ttl_ms / 1000,
    )


def _kafka_admin(settings: RlmSettings) -> KafkaAdmin | None:
    if not settings.bootstrap_servers:
        return None
    security = settings.kafka_security()
    try:
        security.connection_options()
    except KafkaSecurityError as e:
        raise SystemExit(str(e)) from e
    return KafkaAdmin(settings.bootstrap_servers, security=security)


def _cluster(settings: RlmSettings, admin: KafkaAdmin) -> PolledCluster:
    registered_id = settings.cluster_id or read_cluster_id(settings.log_dirs)
    local_records = LocalRecordsAdmin(admin, registered_id)
    confirm_s = settings.deletion_confirm_ms / 1000
    return PolledCluster(admin, registered_id, confirm_s, local_records)


if __name__ == "__main__":
    main()
