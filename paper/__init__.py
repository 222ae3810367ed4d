"""The experiments of "Let's Ask Gauss", run again: data, models, training, figures.

Run from a checkout, as ``python -m paper``; needs the extras ``paper`` and ``opacus``. Nothing is
fetched unless asked for.
"""
