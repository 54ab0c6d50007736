"""Provide steps over the service contracts that RLM, the command and Spark share."""
