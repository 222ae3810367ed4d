"""Recorders, and what they leave: facts and transcripts."""
