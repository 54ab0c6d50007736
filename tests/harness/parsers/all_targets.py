"""List the targets of all parsers by name."""

from tests.harness.parsers import (
    of_access,
    of_brokers,
    of_consumers,
    of_fetches,
    of_logs,
    of_messages,
    of_records,
    of_settings,
    of_stores,
)

TARGETS = {
    target.name: target
    for targets in (
        of_logs,
        of_fetches,
        of_brokers,
        of_consumers,
        of_stores,
        of_messages,
        of_records,
        of_access,
        of_settings,
    )
    for target in targets.TARGETS
}
