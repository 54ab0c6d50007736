"""List the targets of all parsers by name."""

from tests.harness.parsers import of_access, of_logs, of_messages, of_records, of_stores

TARGETS = {
    target.name: target
    for target in (
        *of_logs.TARGETS,
        *of_stores.TARGETS,
        *of_messages.TARGETS,
        *of_records.TARGETS,
        *of_access.TARGETS,
    )
}
