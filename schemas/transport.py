"""kombu's Redis transport, mended where a lost connection would end a worker, or leave its messages behind.

Seen with kombu 5.7: when the broker goes away in mid-chunk, the closing channel tries to give back the messages of
chunks that are still being worked on, over a connection that is gone, and the worker ends with an ``AttributeError``.
And a chunk that ends meanwhile can't be acknowledged: its message would come again after the visibility timeout.
"""

from collections import deque
from typing import Any

from kombu.transport import redis, virtual
from redis.exceptions import ConnectionError as BrokerGone
from redis.exceptions import TimeoutError as BrokerSilent

#: What a broker that is away raises.
_AWAY = (BrokerGone, BrokerSilent, OSError)
#: Messages that could not be acknowledged (False) or given back (True) yet, by their tags, of this process's broker.
_late: deque[tuple[Any, bool]] = deque()


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

    def ack(self, delivery_tag: Any) -> None:
        """Acknowledge, if need be when the broker is back."""
        try:
            super().ack(delivery_tag)
        except _AWAY:
            self._do_later(delivery_tag, requeue=False)

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """Give back or drop, if need be when the broker is back."""
        try:
            super().reject(delivery_tag, requeue=requeue)
        except _AWAY:
            self._do_later(delivery_tag, requeue=requeue)

    def append(self, message: Any, delivery_tag: Any) -> None:
        """Take a message: the broker is there."""
        super().append(message, delivery_tag)
        self._catch_up()

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Called by a timer."""
        super().restore_visible(*args, **kwargs)
        self._catch_up()

    def _do_later(self, delivery_tag: Any, *, requeue: bool) -> None:
        _late.append((delivery_tag, requeue))
        virtual.QoS.ack(self, delivery_tag)  # off this channel's own list

    def _catch_up(self) -> None:
        while True:
            try:
                delivery_tag, requeue = _late.popleft()
            except IndexError:
                return
            try:
                if requeue:
                    self.restore_by_tag(delivery_tag, leftmost=True)
                else:
                    self._remove_from_indices(delivery_tag).execute()
            except _AWAY:
                _late.appendleft((delivery_tag, requeue))
                return


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
