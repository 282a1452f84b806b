"""Point functions on processors, by NumPy and by Numba."""
