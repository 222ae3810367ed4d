"""Who is planted where, and who is present.

A canary is a direction of norm one in the space of the released sum. A *present* canary is
planted, in the steps that sample it, with the largest norm one record may have; an *absent* one is
a direction in which nothing is ever planted. Absent canaries therefore cost the training nothing,
and both kinds are drawn from the same places, so that only membership tells them apart.

Placed canaries are directions themselves. Example canaries are records: the model turns each into
a gradient, whose direction changes as it trains, and the run's own sampler and clipper plant it.
Text canaries are records of a language model, of which only the finished model's loss is seen.
"""

from __future__ import annotations

from askgauss.canaries.canary_set import Canaries, Stream, fresh_seed, random_stream
from askgauss.canaries.coordinates import BlockCanaries, DiracCanaries, PlacedCanaries
from askgauss.canaries.examples import ExampleCanaries, ExampleDataset
from askgauss.canaries.texts import TextCanaries

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
