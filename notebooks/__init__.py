"""Notebooks, written as scripts with cells and executed by ``make notebooks``."""
