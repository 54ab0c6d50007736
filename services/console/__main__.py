"""Run the console: `python -m services.console`. Prints its URL."""

import os

from services.common.client_security import SecurityOptions
from services.common.console_settings import ConsoleSettings
from services.common.log import configure_logging
from services.console.serving import serve_console


def main() -> None:
    settings = ConsoleSettings.from_environment()
    configure_logging("INFO")
    security = SecurityOptions.from_environment(os.environ)
    serve_console(settings, security.security_for, lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
