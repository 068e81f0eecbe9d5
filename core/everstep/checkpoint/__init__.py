"""Checkpoints in memory at every step: what a training script imports."""

from everstep.checkpoint.replaying import Replay, replay
from everstep.checkpoint.session import Restored, Session, connect

__all__ = ["Replay", "Restored", "Session", "connect", "replay"]
