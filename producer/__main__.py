"""``python -m producer``: the same as the console script."""

from producer.cli import main

main()
