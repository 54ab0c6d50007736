"""RLM: ships one broker's rolled segments and serves their records, local or remote."""
