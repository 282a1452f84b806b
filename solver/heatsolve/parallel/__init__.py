"""Processes: ranks, the decomposition of a grid, the exchange of ghost layers."""
