"""Fixed runs and everything they answer, so that a change of code shows what else it changed.

``python -m tests.snapshots`` says what differs, words and numbers apart; ``--write`` keeps it.
"""
