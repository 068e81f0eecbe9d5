"""Decisions over time: one workflow a module, deterministic, no I/O."""
