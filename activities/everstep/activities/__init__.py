"""Effects: one module per outside system, each implementing a port of the workflows."""
