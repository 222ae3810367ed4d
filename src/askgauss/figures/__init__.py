"""Figures of an audit: their numbers, and how they are drawn."""
