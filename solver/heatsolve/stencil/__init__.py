"""Grids, and the point functions that every backend runs."""
