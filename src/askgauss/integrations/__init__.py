"""Audits inside training frameworks; each module needs its framework installed."""
