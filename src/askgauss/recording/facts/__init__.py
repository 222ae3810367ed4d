"""Exact facts of a run's own steps, next to the statistics: no chance, no false alarms.

What is compared is framework-free and lives here; what reads it from a framework lives in
`askgauss.integrations`.
"""

from askgauss.recording.facts.clip_count import ClipCountFacts
from askgauss.recording.facts.gain import GainFacts
from askgauss.recording.facts.mixing import BatchWeights, MixingFacts
from askgauss.recording.facts.noise_rows import NoiseRowFacts, RowNoise
from askgauss.recording.facts.noise_sample import NoiseSample
from askgauss.recording.facts.reuse import ReuseFacts
from askgauss.recording.facts.rounds import (
    HonestFacts,
    ParticipationFacts,
    ProbeFacts,
    ProbeReading,
    RoundFacts,
)
from askgauss.recording.facts.rows import RowFacts
from askgauss.recording.facts.settings import SettingCourse, SettingFacts
from askgauss.recording.facts.steps import StepFacts, StepWitness
from askgauss.recording.facts.weights import WeightFacts, WeightWitness

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
