"""heatsolve: stencils, heat and flow; one case file, any machine, the same bits."""

__version__ = "0.1.0"
