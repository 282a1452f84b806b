"""Geometric multigrid: levels, smoothers, transfers, cycles."""
