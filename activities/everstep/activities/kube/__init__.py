"""Kubernetes: machines are pods. Only `connection` imports the client library."""
