"""``python -m arena``: the command line."""

from arena._cli import main

main()
