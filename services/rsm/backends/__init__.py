"""Where objects are kept: one small Protocol, and S3 and the file system behind it."""
