"""Jobs in a Kubernetes cluster: what is applied there, and from what."""
