"""The database: engine, schema, tables, rows, limits and the retries of a transaction."""
