"""What of Postgres's errors passes by itself, and how long it is tried again."""

import logging

import psycopg
from tenacity import Retrying, before_sleep_log, retry_if_exception, stop_after_delay, wait_random_exponential

from schemas.settings import Settings

logger = logging.getLogger(__name__)

#: Classes of SQLSTATE (PostgreSQL's manual, appendix A) that pass by themselves, whatever the statement was.
_TRANSIENT_CLASSES = (
    "08",  # the connection was lost, refused or reset
    "40",  # rolled back: deadlock, serialization failure
    "53",  # disk full, out of memory, too many connections
    "57",  # cancelled by the statement timeout; the server shuts down, crashed, starts up or recovers
    "58",  # the server's own disk or system fails
)
#: The same of classes in which other errors stay.
_TRANSIENT_STATES = (
    "25006",  # read-only: a failover is not over, or the provider guards a disk that is nearly full
    "25P03",  # the session was closed: idle in a transaction
    "25P04",  # the transaction took too long
    "55006",  # the object is in use
    "55P03",  # the lock is not available
)
#: First pause before another try, in seconds, doubled each time: a deadlock is over in milliseconds.
FIRST_PAUSE_S = 0.1
#: Longest pause, in seconds: the server's return is noticed soon.
MAX_PAUSE_S = 5.0


def transient(error: BaseException) -> bool:
    """Whether the same statement may succeed later: the server's trouble, not the statement's or its values'.

    Constraints, missing tables and missing rights stay. An error without a SQLSTATE is the client's: a connection that
    broke or could not be had in time.
    """
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate[:2] in _TRANSIENT_CLASSES or error.sqlstate in _TRANSIENT_STATES


def retrying(settings: Settings) -> Retrying:
    """Tries again what is transient, with growing pauses, for ``retry_s``."""
    return Retrying(
        retry=retry_if_exception(transient),
        wait=wait_random_exponential(multiplier=FIRST_PAUSE_S, max=MAX_PAUSE_S),
        stop=stop_after_delay(settings.retry_s),
        before_sleep=before_sleep_log(logger, logging.WARNING),
        reraise=True,
    )
