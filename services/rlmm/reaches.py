"""Finding the ranges that hold an offset, without walking back to the first one.

A range that holds an offset begins at most its reach, end minus start, before it. One long range
among many short ones would make every search go back as far as that. So ranges are indexed by how
many digits their reach has, and searched class by class: in a class the longest is at most ten
times the shortest, so that what is read is in proportion to what overlaps, whatever the history.
"""

from services.api.validation import INT64_MAX

REACH_DIGITS = "length((end_offset - start_offset)::text)"
"""SQL for the class of a row with start_offset and end_offset; in an index, so it
stands as PostgreSQL prints it."""

_LONGEST_REACHES = [(digits, min(10**digits - 1, INT64_MAX)) for digits in range(1, 20)]

REACH_CLASSES = "(VALUES " + ", ".join(f"({d}, {longest})" for d, longest in _LONGEST_REACHES) + ")"
"""SQL for all classes that there can be: digits, the longest reach of so many digits."""
