"""`python -m ggmodel`."""

from ggmodel.cli import main

main()
