"""One JSON object a line on standard error."""

import json
import logging
import sys
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, whatever was passed as `extra`, and the traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((k, v) for k, v in vars(record).items() if k not in _STANDARD)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(level: str) -> None:
    """Send the log of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # It tells of every repeated request; what became of the call is told by who made it.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    # It tells that the end of a pipeline failed where its statement did; who ran it tells why.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    # It tells of every connection and of every failure as an error; who asked raises it.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
