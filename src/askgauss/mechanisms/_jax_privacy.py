"""The factorisations of jax-privacy, when it is installed."""

from __future__ import annotations

import importlib
from typing import Any

from askgauss.exceptions import MissingExtraError


def factorization(module: str) -> Any:
    """A module of ``jax_privacy.matrix_factorization``."""
    try:
        return importlib.import_module(f"jax_privacy.matrix_factorization.{module}")
    except ImportError as error:
        raise MissingExtraError(
            "This factorisation needs jax-privacy: pip install askgauss[jax]."
        ) from error
