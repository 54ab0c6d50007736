"""Changes of metadata: each a conditional statement of one transaction, with its event."""
