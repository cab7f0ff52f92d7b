"""The console script ``producer``, and ``python -m producer``."""

from schemas.interrupt import without_traceback


def main() -> None:
    """Run the command line."""
    with without_traceback():
        from producer.cli import main as run  # noqa: PLC0415 (takes a while)
    run()


if __name__ == "__main__":
    main()
