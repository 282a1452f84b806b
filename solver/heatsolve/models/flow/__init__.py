"""Incompressible flow on staggered and collocated grids, about obstacles too."""
