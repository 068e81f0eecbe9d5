"""Checkpoints in memory at every step: what a training script imports."""

from everstep.checkpoint.session import Restored, Session, connect

__all__ = ["Restored", "Session", "connect"]
