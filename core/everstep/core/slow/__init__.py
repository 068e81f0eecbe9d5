"""Which machine slows the job: what ranks' steps cost them, who stands out, and the vote on it."""
