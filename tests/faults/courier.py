"""The broker as a test sees it, and does harm to it: the model's queue, and the messages that workers hold."""

import redis

from schemas.queue import queue_name
from schemas.settings import Settings


class Courier:
    """A look into Valkey beside Celery."""

    def __init__(self, settings: Settings) -> None:
        prefix = settings.broker_key_prefix
        self._queue = prefix + queue_name(settings.model)
        self._held = prefix + "unacked"
        self._client = redis.Redis.from_url(settings.broker_url.get_secret_value())

    def queued(self) -> int:
        """Messages that wait."""
        return int(self._client.llen(self._queue))

    def held(self) -> int:
        """Messages that were delivered and not acknowledged."""
        return int(self._client.hlen(self._held))

    def lose(self, count: int) -> int:
        """Take messages out as a delivery does, and lose them on the way. Returns how many there were."""
        taken = self._client.rpop(self._queue, count)
        return len(taken or [])

    def double(self) -> int:
        """Put a copy of each message that waits into the queue. Returns how many."""
        waiting = self._client.lrange(self._queue, 0, -1)
        if waiting:
            self._client.lpush(self._queue, *waiting)
        return len(waiting)

    def forget_all(self) -> None:
        """FLUSHALL."""
        self._client.flushall()

    def cut(self) -> int:
        """End every connection but this one, once workers wait on some for a message. Returns on how many."""
        waiting = sum(client["cmd"] == "brpop" for client in self._client.client_list())
        if waiting:  # else it would only keep them from connecting anew
            self._client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        return waiting

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()
