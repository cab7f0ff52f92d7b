"""The console script ``worker``, and ``python -m worker``."""

from schemas.interrupt import without_traceback


def main() -> None:
    """Run the command line."""
    with without_traceback():
        from worker.cli import main as run  # noqa: PLC0415 (takes a while)
    run()


if __name__ == "__main__":
    main()
