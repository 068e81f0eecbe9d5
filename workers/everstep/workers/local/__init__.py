"""A whole cluster on this machine: Temporal server, controller, analyzer, agents."""
