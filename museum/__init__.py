"""Real bugs of released libraries, each next to a fixed version."""
