"""Shards between machines: who gives, who sends, who asks, and their protocol."""
