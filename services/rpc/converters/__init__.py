"""Convert between wire messages and the nouns of services.api, one module for each proto file.

The import registers the converters of nouns that messages of several files have.
"""

from services.rpc.converters import shared as shared
