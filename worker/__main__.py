"""`python -m worker`: the same as the console script."""

from worker.cli import main

main()
