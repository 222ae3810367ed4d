"""The check of whether the gradient of a row is that of one record alone."""

from __future__ import annotations

from askgauss.checks.findings import fact, not_run
from askgauss.recording.facts import MixingFacts
from askgauss.results import Consequence, Finding

__all__ = ["mixed_records"]

# Where records meet: what is said of it, and what to do.
_CAUSES = (
    (
        "forward",
        "the model's forward pass: outputs of one record change when other records of the batch "
        "are replaced",
        "Replace layers that mix records, such as batch normalisation or attention over the batch, "
        "by layers that treat each record alone, such as GroupNorm or LayerNorm.",
    ),
    (
        "inputs",
        "the model's inputs: rows are made of two records of the batch, as by mixup or cutmix",
        "Augment each record by itself: mixup and cutmix put two records into one row, which is "
        "clipped as one.",
    ),
    (
        "loss",
        "the loss: the gradient of one record depends on other records of the batch",
        "Use a loss that is a sum over records: contrastive, centred and load-balancing losses "
        "give each record a gradient that depends on the others.",
    ),
    (
        "weights",
        "weights of the loss: classes are weighted by how many records of them are in the batch",
        "Fix class weights before training, from public data or from counts with noise.",
    ),
    (
        "state",
        "the model's buffers: the forward pass keeps a statistic of the batch without noise, and "
        "later outputs depend on it",
        "Keep no statistics of the batch in the model.",
    ),
)
_LOOKED = {"forward": "the forward pass", "inputs": "the inputs", "loss": "the loss"}


def mixed_records(facts: MixingFacts) -> Finding:
    """Whether records of a batch meet before they are clipped."""
    name = "mixed records"
    found = [item for item in _CAUSES if getattr(facts, f"{item[0]}_first")]
    if found:
        first = min(getattr(facts, f"{kind}_first") for kind, _, _ in found)
        return fact(
            name,
            True,
            f"records are mixed before they are clipped, first seen in step {first:,}, by "
            + "; by ".join(said for _, said, _ in found)
            + ". One record changes the clipped gradients of others: its contribution is not "
            "bounded by the clip norm.",
            consequence=Consequence.INVALIDATES,
            measured=float(len(found)),
            claimed=0.0,
            remedy=" ".join(remedy for _, _, remedy in found),
        )
    looked = [said for kind, said in _LOOKED.items() if getattr(facts, kind)]
    missing = [
        f"{said} ({getattr(facts, f'{kind}_unseen') or 'no step was looked at'})"
        for kind, said in _LOOKED.items()
        if not getattr(facts, kind)
    ]
    if missing:
        clean = f"; {_listed(looked)} mixed no records" if looked else ""
        return not_run(name, f"a look at {_listed(missing)}{clean}")
    steps = min(facts.forward, facts.inputs, facts.loss)
    return fact(
        name,
        False,
        f"in {steps:,} steps that were looked at, neither the inputs nor the forward pass nor the "
        "loss mixed records.",
        consequence=Consequence.INVALIDATES,
        measured=0.0,
        claimed=0.0,
        sees=f"mixing in the inputs, forward pass or loss of {steps:,} steps",
    )


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
