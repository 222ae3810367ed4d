"""Deliberate faults, and whether the suite finds them.

``python -m tests.mutants [names]`` puts each into a copy of the package and runs tests there.
"""
