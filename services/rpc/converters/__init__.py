"""Convert between wire messages and the nouns of services.api, one module for each proto file."""
