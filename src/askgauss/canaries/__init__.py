"""Canaries: directions or records that are inserted into a run or held out of it.

A canary is a direction of norm one in the space of the released sum. A *present* canary is
inserted: steps that sample it include it with the largest norm one record may have. An *absent* one
is held out: nothing is ever added along it, so that it costs the training nothing. Both kinds are
drawn from one distribution and differ in membership alone.

Placed canaries are directions themselves (gradient space). Example canaries are records (input
space): the model turns each into a gradient, whose direction changes as it trains, and the run's
own sampler and clipper treat it. Text canaries are records of a language model, of which only the
finished model's loss is seen.
"""

from __future__ import annotations

from askgauss.canaries.canary_set import (
    BlockCanaries,
    Canaries,
    DiracCanaries,
    PlacedCanaries,
    Stream,
    fresh_seed,
    random_stream,
)
from askgauss.canaries.records import ExampleCanaries, ExampleDataset, TextCanaries

__all__ = [
    "BlockCanaries",
    "Canaries",
    "DiracCanaries",
    "ExampleCanaries",
    "ExampleDataset",
    "PlacedCanaries",
    "Stream",
    "TextCanaries",
    "fresh_seed",
    "random_stream",
]
