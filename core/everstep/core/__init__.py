"""The shared language, and every decision that needs no I/O. Standard library only."""
