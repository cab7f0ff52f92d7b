"""``python -m ops.local``: the local stack and the demo; ``make`` calls it. See :mod:`ops.local_commands`."""

import signal


def main() -> None:
    """Run the command that the arguments name, and exit with its code."""
    # Until a command has started something, a Ctrl-C has nothing to stop and ends this without a traceback,
    # also during the second that the imports take.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ops.local_commands import app  # noqa: PLC0415

    app(prog_name="python -m ops.local")


if __name__ == "__main__":
    main()
