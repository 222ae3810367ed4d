"""Coins that fall alike in every world: seeds by step, and the generators they go to."""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from askgauss import _validate

__all__ = ["preserved", "reset_all", "reset_one", "seed_of", "state_of"]


def seed_of(*parts: object) -> int:
    """A seed of 63 bits for these parts; other parts, another seed."""
    text = repr(parts).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


def reset_all(*parts: object) -> None:
    """Set the generators of the process (Python's, numpy's, torch's where loaded) by a seed."""
    seed = seed_of(*parts)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (the one that everybody shares)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Leave the generators of the process as they were."""
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    main: Any = None
    devices: list[Any] = []
    if torch is not None:
        main = torch.default_generator.get_state()
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch is not None:
            torch.default_generator.set_state(main)
            if devices:
                torch.cuda.set_rng_state_all(devices)


def reset_one(generator: Any, *parts: object) -> None:
    """Set one generator of numpy, Python or torch by a seed."""
    seed = seed_of(*parts)
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        bits.state = type(bits)(seed).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed % 2**32)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif hasattr(generator, "manual_seed"):
        generator.manual_seed(seed)
    else:
        raise _unknown(generator)


def state_of(generator: Any) -> str:
    """A digest of where a generator stands."""
    if isinstance(generator, np.random.Generator):
        state: Any = generator.bit_generator.state
    elif isinstance(generator, np.random.RandomState):
        state = generator.get_state(legacy=False)
    elif isinstance(generator, random.Random):
        state = generator.getstate()
    elif hasattr(generator, "get_state"):
        state = generator.get_state().numpy().tobytes()
    else:
        raise _unknown(generator)
    return hashlib.sha256(_spelled(state).encode()).hexdigest()[:16]


def _spelled(state: Any) -> str:
    """All of a state in text; numpy shortens long arrays unless asked."""
    if isinstance(state, dict):
        return repr({name: _spelled(item) for name, item in state.items()})
    return repr(state.tolist()) if isinstance(state, np.ndarray) else repr(state)


def _unknown(generator: Any) -> Exception:
    return _validate.fail(
        "generator",
        generator,
        "to be numpy's Generator or RandomState, random.Random or a torch.Generator",
    )
