"""Run RLMM, in one process or several: `python -m services.rlmm`."""

from functools import partial

from services.api.errors import InvalidRequestError
from services.common.log import configure_logging
from services.rlmm.database.db import Transactions
from services.rlmm.database.engine import create_database_engine
from services.rlmm.database.metrics import publish_connections
from services.rlmm.database.traced_statements import trace_statements
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.operations.verification_ages import VerificationAges
from services.rlmm.servicer import add_to_server
from services.rlmm.settings import RlmmSettings
from services.rpc.server.part import Part
from services.rpc.server.processes import run
from services.rpc.server.server import Service, serve

NAME = "tieredstorage.v1.RemoteLogMetadataManager"


def main() -> None:
    settings = RlmmSettings.to_serve()
    configure_logging(settings.log_level)
    run("rlmm", NAME, settings, _serve)


def _serve(settings: RlmmSettings, part: Part) -> None:
    url = settings.database_url.get_secret_value()
    try:
        engine = create_database_engine(
            url, settings.database_limits(), password_file=settings.database_password_file
        )
    except InvalidRequestError as e:
        raise SystemExit(f"RLMM_DATABASE_URL: {e}") from e
    if settings.traces_endpoint is not None:
        trace_statements(engine)
    manager = SqlRemoteLogMetadataManager(engine, settings.limits(), settings.watch_limits())

    publish_connections(engine)
    # They are the database's: one process publishes them for all.
    ages = VerificationAges(Transactions(engine)) if part.number == 0 else None

    def close() -> None:
        if ages is not None:
            ages.stop()
        engine.dispose()

    service = Service(
        "rlmm",
        NAME,
        partial(add_to_server, manager),
        manager.check,
        close,
        watch_methods=[f"/{NAME}/WatchPartitions"],
        watch_threads=settings.watch_threads,
        end_watches=manager.end_watches,
        depends_on="the metadata database",
    )
    if ages is not None:
        ages.start()
    serve(service, settings, part)


if __name__ == "__main__":
    main()
