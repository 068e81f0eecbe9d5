"""What runs on each machine: ranks, their logs, their memory, its transfer port."""
