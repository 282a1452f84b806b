"""Linear systems A u = b on a grid: sweeps and reductions only; no model, no wall, no file.

`system` says what a system and a method are, `iterate` runs a method, `stopping` ends it. The
methods: `stationary`, `krylov`, `multigrid` and `fft`.
"""
