"""The user turn of one document, as the producer shows it and the worker sends it."""

from schemas.user_turn import UserTurn

__all__ = ["UserTurn"]
