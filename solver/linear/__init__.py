"""Linear solvers: sweeps and reductions only; they know no model, no wall, no file."""
