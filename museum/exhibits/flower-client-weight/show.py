"""Forty rounds of thirty clients."""

from __future__ import annotations

from museum.flower_rounds import fixed
from museum.outcomes import main

main(fixed)
