"""kombu's Redis transport, mended where a lost connection would end a worker or run its chunks twice.

Seen with kombu 5.7: when the broker goes away in mid-chunk, the closing channel tries to give back the messages of
chunks that are still being worked on, over a connection that is gone, and the worker ends with an ``AttributeError``.
"""

from typing import Any

from kombu.transport import redis


class QoS(redis.QoS):  # type: ignore[misc]
    """Keeps unacknowledged messages for itself while the worker goes on."""

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Give back what is not acknowledged: when the worker stops, not when its connection is renewed.

        Their chunks are still being worked on; each is acknowledged or given back when it ends.
        """
        from celery.worker import state  # noqa: PLC0415 (loads half of Celery, which producers need not)

        if state.should_stop is None and state.should_terminate is None:
            self._on_collect.cancel()
            return
        super().restore_unacked_once(stderr)


class Channel(redis.Channel):  # type: ignore[misc]
    """Can still acknowledge and give back after its connection was renewed: the broker knows messages by their tags."""

    QoS = QoS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._address = super()._connparams()

    def _connparams(self, asynchronous: bool = False) -> Any:
        closed = self.connection is None or self.connection.client is None
        return dict(self._address) if closed else super()._connparams(asynchronous=asynchronous)


class Transport(redis.Transport):  # type: ignore[misc]
    """See the module."""

    Channel = Channel
