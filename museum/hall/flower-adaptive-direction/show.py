"""Forty rounds of thirty clients."""

from __future__ import annotations

from museum.flower_rounds import adaptive
from museum.showing import main

main(adaptive)
