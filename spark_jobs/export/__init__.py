"""Export the records of tiered topics into a table."""
