"""Point functions on NVIDIA GPUs, by CuPy and by Numba-CUDA."""
