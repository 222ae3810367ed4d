"""Audit an Opacus run from inside it: ``with CanaryAudit(optimizer, data_loader=loader): ...``."""

from askgauss.integrations.opacus.canary_audit import CanaryAudit, Observation

__all__ = ["CanaryAudit", "Observation"]
