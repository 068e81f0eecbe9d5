"""What people write: job specs and policies, read with pydantic."""
