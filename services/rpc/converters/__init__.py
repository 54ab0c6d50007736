"""Between wire messages and the nouns of services.api, one module for each proto file.

Reading a message checks it: whatever is absent or malformed raises InvalidRequestError with the
path of the field.
"""
