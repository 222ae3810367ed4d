"""Describe a small table with and without its oldest record."""

from __future__ import annotations

from museum.outcomes import main
from museum.synthesis import show_describer

main(show_describer(seeded=False, ranged=False))
