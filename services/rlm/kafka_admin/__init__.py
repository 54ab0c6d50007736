"""Read the roles of this broker, and the policies of its topics, from the cluster."""
