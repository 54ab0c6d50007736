"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.output import Format

JsonOrTable = Annotated[Format, typer.Option("-o", "--output", help="For people or for scripts.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Where `sediment up` keeps its data; by default the user's data directory, root's is "
        "/var/tmp/sediment."
    ),
]
TopicPartition = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC-PARTITION", help="For example orders-0; TOPIC_ID:orders-0 where names recur."
    ),
]
Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="For example orders; TOPIC_ID:orders where names recur."),
]
_ADDRESS_HELP = "HOST:PORT; by default that of a running `sediment up`."
Rsm = Annotated[str | None, typer.Option(envvar="SEDIMENT_RSM", help=_ADDRESS_HELP)]
Rlmm = Annotated[str | None, typer.Option(envvar="SEDIMENT_RLMM", help=_ADDRESS_HELP)]
Rlm = Annotated[str | None, typer.Option(envvar="SEDIMENT_RLM", help=_ADDRESS_HELP)]
Locations = Annotated[
    list[int] | None,
    typer.Option(
        min=0,
        max=65_535,
        help="A registered location of RSM to look at; may be repeated. By default the one that "
        "new segments go to.",
    ),
]
