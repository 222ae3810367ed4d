"""Binary-tree prefix sums with Gaussian noise, the mechanism of DP-FTRL (arXiv 2103.00039).

Node ``(level, index)`` covers the leaves ``index * 2**level`` up to ``(index + 1) * 2**level - 1``,
counted from 0, and is complete once the last of them has arrived. Every complete node carries one
Gaussian draw; a prefix of the stream is put together from nodes by one of three estimators:

- ``plain``: the nodes of the binary digits of its length, as first proposed;
- ``honaker``: each of those nodes averaged with what its descendants say, using the past only;
- ``full``: least squares over all nodes, future ones included, hence offline.

All three are functions of the same released nodes, so they cost the same privacy. Noise is counted
in units of the clip norm throughout. Neighbours differ in one record, whose contributions are there
or zero; nothing is sampled, so who else is in which batch stays the same.
"""

from askgauss.mechanisms.noise_streams import CheckedDraw, Draw, numpy_draw
from askgauss.mechanisms.tree.estimates import (
    node_noise,
    node_sums,
    node_weight,
    prefix_variance,
    prefixes,
)
from askgauss.mechanisms.tree.sensitivity_of_tree import check_participation, sensitivity
from askgauss.mechanisms.tree.shape import (
    Estimator,
    ancestors,
    completed_nodes,
    levels,
    prefix_nodes,
)
from askgauss.mechanisms.tree.streaming import TreeNoise

__all__ = [
    "CheckedDraw",
    "Draw",
    "Estimator",
    "TreeNoise",
    "ancestors",
    "check_participation",
    "completed_nodes",
    "levels",
    "node_noise",
    "node_sums",
    "node_weight",
    "numpy_draw",
    "prefix_nodes",
    "prefix_variance",
    "prefixes",
    "sensitivity",
]
