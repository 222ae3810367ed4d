"""Evidence for others: provenance, commitment, verification, and the evidence pack."""
