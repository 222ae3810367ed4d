"""The mechanisms that are audited: what they release, how much noise, and what it costs."""
