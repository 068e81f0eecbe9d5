"""A model of machines, code versions and time, to try policies on ninety days in seconds."""
