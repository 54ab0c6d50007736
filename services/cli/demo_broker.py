"""`sediment demo-broker`: RLM beside a stock broker, as a show.

On embedded servers and a broker of its own, which knows nothing of its tier.
"""

import signal
import sys
import time
from pathlib import Path

from services.cli.demo_kafka_needs import require_broker
from services.cli.failures import EXIT_FAILED, CommandError
from services.cli.output import Format, print_json, say

_ENDED_BY_SIGNAL = 128


def run(kafka: Path, output: Format) -> int:
    """Answer 0 where everything was as it should be; 1 where it was not, and say what.

    Raises:
        CommandError: something that the show needs is missing; or it could not go on.
        ProcessError: a server did not start.
    """
    kafka_version = require_broker(kafka)
    # Only now: they import what was just asked for.
    from confluent_kafka import KafkaException

    from services.cli.demo_broker_report import DemoBrokerReport, as_json, summary
    from services.cli.demo_broker_show import perform
    from services.cli.demo_broker_stage import running_stage
    from services.local.kafka_broker import KafkaBrokerError
    from services.local.kafka_client import KafkaClientError

    # What was started ends with us in any case; the scratch directory goes only if we end in order.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda sent, _: sys.exit(_ENDED_BY_SIGNAL + sent))
    started = time.monotonic()
    report = DemoBrokerReport(kafka_version)
    try:
        with running_stage(kafka.resolve(), report, output) as stage:
            perform(stage)
    except (KafkaException, KafkaClientError, KafkaBrokerError) as e:
        raise CommandError(f"the broker failed: {e}", EXIT_FAILED) from e
    report.seconds = time.monotonic() - started
    if output is Format.JSON:
        print_json(as_json(report))
    for line in summary(report):
        say(line)
    return report.exit_code
