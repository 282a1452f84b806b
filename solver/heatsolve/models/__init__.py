"""The equations: heat conduction, transport, incompressible flow, and users' models."""
