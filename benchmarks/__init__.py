"""Each claim of the README as a command that prints a figure against a named rival."""
