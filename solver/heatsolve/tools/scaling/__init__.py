"""Weak and strong scaling studies."""
