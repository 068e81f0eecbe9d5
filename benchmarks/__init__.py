"""Each claim of the README and docs as a command that prints a figure against a named rival."""
