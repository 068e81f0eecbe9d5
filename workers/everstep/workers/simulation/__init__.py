"""A simulated cluster behind the real workflows, on a server that skips time."""
