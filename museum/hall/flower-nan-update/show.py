"""Forty rounds of thirty clients."""

from __future__ import annotations

from museum.flower_rounds import fixed
from museum.showing import main

main(fixed)
