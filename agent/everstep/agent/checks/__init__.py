"""Stop-time checks on this machine: programs started, waited for, and killed at their deadline."""
