"""Studies: programs that use the solver as any user would, and measure it."""
