"""Indexes of remote segments, kept here: in memory, and in files that outlive the process."""
