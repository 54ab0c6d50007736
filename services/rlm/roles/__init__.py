"""Which partitions this broker leads and follows; what begins and ends with that."""
