"""Define each parser of bytes from outside as a target of the property tests and the fuzzing."""
