"""What the objects of a Kubernetes cluster mean to a job. Pure; they come as JSON objects."""
