"""Sediment's services. Who may import whom: docs/understand/architecture.md, enforced by a test."""
