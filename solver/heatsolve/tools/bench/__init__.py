"""Measurements of speed, in units of this machine's copy bandwidth."""
