"""A run that is stopped, saved and continued."""
