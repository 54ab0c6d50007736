"""Define the operator's command `sediment`: one file per command or group of commands."""
