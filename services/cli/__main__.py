"""Run `python -m services.cli`, the same as the console script `sediment`."""

from services.cli.main import main

main()
