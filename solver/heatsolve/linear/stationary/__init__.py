"""Stationary iterations: Jacobi, successive over-relaxation, Chebyshev."""
