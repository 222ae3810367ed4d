"""Describe a small table again and again, as its users do."""

from __future__ import annotations

from museum.outcomes import main
from museum.synthesis import show_describer

main(show_describer(seeded=True, ranged=True))
