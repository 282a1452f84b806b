"""Heat conduction by finite volumes."""
