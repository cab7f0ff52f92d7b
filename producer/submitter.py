"""Who runs a command, as jobs and what is decided about them record it."""

import getpass
import os
import socket

from schemas.jsontext import make_storable


def submitter() -> str:
    """Who runs this, for people: ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        user = f"uid {os.getuid()}"
    return make_storable(f"{user}@{socket.gethostname()}")
