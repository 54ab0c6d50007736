"""RLMM on PostgreSQL: knows every copied segment, keeps the audit trail, owns the schema."""
