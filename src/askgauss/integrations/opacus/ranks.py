"""Ranks of one run: that all of them audit, and all the same."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import secrets

import torch

from askgauss.exceptions import RecordingError

__all__ = ["agree", "meet", "shared_nonce", "told_by_all"]

# Seconds that ranks wait for each other before one says who is missing.
PATIENCE = 300.0
_meetings = itertools.count()


def meet(rank: int, world: int) -> None:
    """Wait until every rank is here: a collective call that some of them leave out never ends.

    Raises:
        RecordingError: Some rank did not come, since no audit is made or attached there.
    """
    if world == 1:
        return
    store = torch.distributed.distributed_c10d._get_default_store()
    names = [
        f"askgauss/{number}/{other}" for number in (next(_meetings),) for other in range(world)
    ]
    store.set(names[rank], "here")
    try:
        store.wait(names, datetime.timedelta(seconds=PATIENCE))
    except RuntimeError as error:
        missing = [other for other, name in enumerate(names) if not store.check([name])]
        raise RecordingError(
            f"Expected an audit on each of {world} ranks, waited {PATIENCE:.0f} seconds for ranks "
            f"{missing}. Make and enter the same CanaryAudit on every rank, not on the first only."
        ) from error


def told_by_all(text: str, world: int, device: torch.device) -> list[str]:
    """What every rank says, in the order of the ranks; all of them have to say something."""
    own = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    lengths = torch.zeros(world, dtype=torch.int64, device=device)
    lengths[torch.distributed.get_rank()] = own.numel()
    torch.distributed.all_reduce(lengths)
    padded = torch.zeros(int(lengths.max()), dtype=torch.uint8, device=device)
    padded[: own.numel()] = own
    heard = [torch.empty_like(padded) for _ in range(world)]
    torch.distributed.all_gather(heard, padded)
    parts = zip(heard, lengths.tolist(), strict=True)
    return [bytes(item[:length].tolist()).decode() for item, length in parts]


def shared_nonce(world: int, device: torch.device) -> str:
    """Random text that all ranks share."""
    drawn = torch.tensor(list(secrets.token_bytes(16)), device=device)
    if world > 1:
        torch.distributed.broadcast(drawn, src=0)
    return bytes(drawn.tolist()).hex()


def agree(facts: str, world: int, device: torch.device) -> None:
    """All ranks must plant and watch alike, or the sums they share mean nothing.

    Raises:
        RecordingError: They do not.
    """
    if world == 1:
        return
    value = int.from_bytes(hashlib.sha256(facts.encode()).digest()[:7], "big")
    extremes = torch.tensor([value, -value], device=device)
    torch.distributed.all_reduce(extremes, op=torch.distributed.ReduceOp.MAX)
    if int(extremes[0]) != -int(extremes[1]):
        raise RecordingError(
            "Expected every rank to attach the same audit, got different ones. Give all ranks "
            "the same canaries, seed, sampling rate and checkpoint."
        )
