"""Other auditing packages, each called in an environment of its own on the same scores."""
