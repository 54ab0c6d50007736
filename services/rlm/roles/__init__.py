"""Keep the roles of this broker, and run the tasks of each role."""
