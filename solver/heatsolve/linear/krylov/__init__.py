"""Conjugate gradients, plain and preconditioned by multigrid."""
