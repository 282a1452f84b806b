"""Incompressible flow, on staggered or on collocated grids."""
