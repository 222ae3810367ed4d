"""Forty rounds of thirty clients."""

from __future__ import annotations

from museum.flower_rounds import adaptive
from museum.outcomes import main

main(adaptive)
