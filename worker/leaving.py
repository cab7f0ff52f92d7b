"""How a worker leaves when it can't wait."""

import logging
import os
import threading
from collections.abc import Callable

from worker.family import kill_descendants

logger = logging.getLogger(__name__)

#: Seconds for the last word to the log and to Postgres: a healthy server takes milliseconds, and who asks twice
#: does not wait.
LAST_WORD_S = 1.0


def leave_at_once(exit_code: int, words: str, free: Callable[[], None]) -> None:
    """End this process within :data:`LAST_WORD_S` and a little, with all that it started. Does not return.

    :param words: for the log.
    :param free: gives the leases back; not waited for any longer than that.
    """

    def last_word() -> None:
        logger.critical(words)
        try:
            free()
        except Exception as error:  # whatever it is: there is no later
            logger.error("chunks were not given back, their leases run out: %s", error)

    try:
        # Apart: Postgres may be silent, and the log may be a pipe that nobody reads.
        thread = threading.Thread(target=last_word, name="last-word", daemon=True)
        thread.start()
        thread.join(LAST_WORD_S)
        # An engine's core would stay, with the GPU's memory.
        kill_descendants()
    finally:
        os._exit(exit_code)
