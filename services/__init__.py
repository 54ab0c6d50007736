"""Sediment's services. Who may import whom: docs/architecture.md, enforced by a test."""
