"""Run the embedded stack: real servers, the services as processes; imports no service."""
