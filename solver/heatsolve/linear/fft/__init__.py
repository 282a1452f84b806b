"""Direct solution of constant-coefficient systems by fast Fourier transforms."""
