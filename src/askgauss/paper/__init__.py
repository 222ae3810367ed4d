"""The experiments of "Let's Ask Gauss", run again: data, models, training, figures.

Needs the extras ``paper`` and ``opacus``. Nothing is fetched unless asked for.
"""
