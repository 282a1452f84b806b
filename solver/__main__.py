"""`python -m heatsolve` is the program `heatsolve`."""

from heatsolve.cli import main

main()
