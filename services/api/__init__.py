"""Kafka's nouns, the service contracts as Python Protocols, and the pure rules.

Imports nothing else of ours: no transport, no SDK, no ORM.
"""
