"""Audit a JAX run: a wrapper around the transformation that adds the noise."""

from askgauss.integrations.jax.audit import Audit, AuditState, ExampleAudit, claim_of

__all__ = ["Audit", "AuditState", "ExampleAudit", "claim_of"]
