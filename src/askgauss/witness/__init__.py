"""Exact facts of a run's own steps, next to the statistics: no chance, no false alarms.

What is compared is framework-free and lives here; what reads it from a framework lives in
`askgauss.integrations`.
"""

from askgauss.witness.clip_count import ClipCountFacts
from askgauss.witness.gain import GainFacts
from askgauss.witness.mixing import BatchWeights, MixingFacts
from askgauss.witness.noise_rows import NoiseRowFacts, RowNoise
from askgauss.witness.noise_sample import NoiseSample
from askgauss.witness.reuse import ReuseFacts
from askgauss.witness.rounds import (
    HonestFacts,
    ParticipationFacts,
    ProbeFacts,
    ProbeReading,
    RoundFacts,
)
from askgauss.witness.rows import RowFacts
from askgauss.witness.settings import SettingCourse, SettingFacts
from askgauss.witness.steps import StepFacts, StepWitness
from askgauss.witness.weights import WeightFacts, WeightWitness

__all__ = [
    "BatchWeights",
    "ClipCountFacts",
    "GainFacts",
    "HonestFacts",
    "MixingFacts",
    "NoiseRowFacts",
    "NoiseSample",
    "ParticipationFacts",
    "ProbeFacts",
    "ProbeReading",
    "ReuseFacts",
    "RoundFacts",
    "RowFacts",
    "RowNoise",
    "SettingCourse",
    "SettingFacts",
    "StepFacts",
    "StepWitness",
    "WeightFacts",
    "WeightWitness",
]
