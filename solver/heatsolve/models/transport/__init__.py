"""Transport of a quantity by convection and diffusion."""
