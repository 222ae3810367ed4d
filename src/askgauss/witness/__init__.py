"""Exact facts of a run's own steps, next to the statistics: no chance, no false alarms.

What is compared is framework-free and lives here; what reads it from a framework lives in
`askgauss.integrations`.
"""

from askgauss.witness.clip_count import ClipCountFacts
from askgauss.witness.rounds import (
    HonestFacts,
    ParticipationFacts,
    ProbeFacts,
    ProbeReading,
    RoundFacts,
)
from askgauss.witness.steps import StepFacts, StepWitness
from askgauss.witness.weights import WeightFacts, WeightWitness

__all__ = [
    "ClipCountFacts",
    "HonestFacts",
    "ParticipationFacts",
    "ProbeFacts",
    "ProbeReading",
    "RoundFacts",
    "StepFacts",
    "StepWitness",
    "WeightFacts",
    "WeightWitness",
]
