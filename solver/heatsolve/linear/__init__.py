"""Linear systems A u = b on a grid: sweeps and reductions only, without models, walls or files.

`system` defines a system and the interface of a method, `iterate` runs a method, `stopping` ends
it. The methods: `stationary`, `krylov`, `multigrid` and `fft`.
"""
