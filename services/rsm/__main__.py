"""`python -m services.rsm`: RSM, in one process or several."""

import grpc

from services.common.log import configure_logging
from services.rpc.server.part import Part
from services.rpc.server.processes import run
from services.rpc.server.server import Service, serve
from services.rsm.factory import build_manager
from services.rsm.servicer import add_to_server
from services.rsm.settings import RsmSettings

NAME = "tieredstorage.v1.RemoteStorageManager"


def main() -> None:
    settings = RsmSettings.to_serve()
    configure_logging(settings.log_level)
    run("rsm", NAME, settings, _serve)


def _serve(settings: RsmSettings, part: Part) -> None:
    manager = build_manager(settings, checked_first=True)

    def add_to(server: grpc.Server) -> None:
        add_to_server(manager, server)

    service = Service(
        "rsm",
        NAME,
        add_to,
        manager.check,
        manager.close,
        client_stream_threads=settings.copy_threads,
        stop_waiting=manager.stop_waiting,
        depends_on="the object store",
        notes=lambda: manager.store_rules,
    )
    serve(service, settings, part)


if __name__ == "__main__":
    main()
