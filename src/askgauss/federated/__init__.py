"""Federated learning and other user-level training: canary clients through the aggregator."""

from askgauss.federated.aggregator import AuditedAggregator
from askgauss.federated.clients import CanaryClients, Joined
from askgauss.federated.readings import PeerEstimates
from askgauss.federated.simulated_server import (
    FEDERATED_FAULTS,
    FederatedFault,
    Server,
    simulate_federated,
)

__all__ = [
    "FEDERATED_FAULTS",
    "AuditedAggregator",
    "CanaryClients",
    "FederatedFault",
    "Joined",
    "PeerEstimates",
    "Server",
    "simulate_federated",
]
