"""The `everstep` command."""
