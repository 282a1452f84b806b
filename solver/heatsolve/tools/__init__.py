"""Tools around runs: measurement, verification, scaling studies, batch jobs, diagnosis."""
