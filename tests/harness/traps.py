"""Record who connects to where the environment, instead of a setting, would send a client."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import socket


class Trap:
    """A listener that hangs up on whoever connects, and counts them."""

    def __init__(self, listening: socket) -> None:
        self._listening = listening
        self.port: int = listening.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.reached = 0

    def serve(self) -> None:
        with suppress(OSError):  # the test is over
            while True:
                connection, _ = self._listening.accept()
                self.reached += 1
                connection.close()

    def proxies(self) -> dict[str, str]:
        """Return the variables by which proxies, and a collector of spans, are named."""
        url = f"http://{self.address}"
        names = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
        return {
            **{name: url for each in names for name in (each, each.upper())},
            "no_proxy": "",
            "NO_PROXY": "",
            "no_grpc_proxy": "",
            "GRPC_ADDRESS_HTTP_PROXY": self.address,
            "GRPC_ADDRESS_HTTP_PROXY_ENABLED_ADDRESSES": "127.0.0.0/8",
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url,
        }

    def of_libpq(self, directory: Path) -> dict[str, str]:
        """Return variables that libpq uses for what a URL does not name, and beside it."""
        services = directory / "services.conf"
        services.write_text(f"[trap]\nhostaddr=127.0.0.1\nport={self.port}\n")
        return {
            "PGHOST": "127.0.0.1",
            "PGHOSTADDR": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGDATABASE": "trap",
            "PGUSER": "trap",
            "PGPASSWORD": "trap",
            "PGSERVICE": "trap",
            "PGSERVICEFILE": str(services),
            "PGSSLMODE": "verify-full",
            "PGREQUIREAUTH": "gss",
            "PGTARGETSESSIONATTRS": "standby",
            "PGOPTIONS": "-c statement_timeout=1",
            "PGCLIENTENCODING": "LATIN1",
            "PGDATESTYLE": "SQL, DMY",
            "PGTZ": "Asia/Tokyo",
        }


@contextmanager
def trap() -> Iterator[Trap]:
    with socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        made = Trap(listening)
        thread = threading.Thread(target=made.serve, name="trap", daemon=True)
        thread.start()
        try:
            yield made
        finally:
            with suppress(OSError):
                listening.shutdown(2)  # wakes up accept
            thread.join()
