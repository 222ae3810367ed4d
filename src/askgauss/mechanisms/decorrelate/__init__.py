"""Releases of correlated noise turned back into steps with independent noise."""
