"""Real bugs of released libraries, each beside its mended twin."""
