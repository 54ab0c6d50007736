"""Store objects in S3 or in the file system, behind one Protocol."""
