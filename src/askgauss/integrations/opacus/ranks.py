"""Where canaries lie in the parameters, whole or shared out over ranks, and how ranks agree."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askgauss.canaries import BlockCanaries, DiracCanaries
from askgauss.exceptions import RecordingError, UnsupportedError
from askgauss.files import codec
from askgauss.integrations.opacus.opacus_versions import DTensor
from askgauss.recording.injection import Layout

__all__ = [
    "CanaryCoordinates",
    "Shard",
    "ShardedCoordinates",
    "agree",
    "divided_by",
    "gather",
    "is_sharded",
    "local",
    "meet",
    "shards_of",
    "shared_nonce",
]


class CanaryCoordinates:
    """Where the canaries lie in a list of tensors, laid out once for fast access.

    Reading takes one gather a tensor and stays on the device: nothing waits for it before the
    caller moves the result to the host.

    Args:
        tensors: The parameters, in the order of the canaries' flat vector.
        canaries: The canaries.
    """

    # Whether reading is a call that every rank has to make.
    collective = False

    def __init__(self, tensors: Sequence[Tensor], canaries: DiracCanaries | BlockCanaries) -> None:
        sizes = np.array([tensor.numel() for tensor in tensors], dtype=np.int64)
        self._layout = layout = Layout(sizes, canaries)
        self._devices = [tensor.device for tensor in tensors]
        self._read_places = self._on_devices(layout.read_places)
        self._insert_places = self._on_devices(layout.plant_places)
        self._insert_counts = [len(part) for _, part in self._insert_places]
        self._dtype = (
            torch.float64
            if any(tensor.dtype == torch.float64 for tensor in tensors)
            else torch.float32
        )
        self._on_host = all(device.type == "cpu" for device in self._devices)
        ends = np.cumsum([0, *(len(local) for _, local in layout.read_places)]).tolist()
        self._reads = [
            (index, local, slice(*pair))
            for (index, local), pair in zip(
                layout.read_places, itertools.pairwise(ends), strict=True
            )
        ]
        self._read_size = ends[-1]
        self._heights = torch.zeros(layout.plantable, dtype=self._dtype)

    def _on_devices(
        self, places: Sequence[tuple[int, NDArray[np.int64]]]
    ) -> list[tuple[int, Tensor]]:
        return [
            (index, torch.from_numpy(local).to(self._devices[index])) for index, local in places
        ]

    @property
    def dtype(self) -> torch.dtype:
        """The numbers of a reading."""
        return self._dtype

    @property
    def width(self) -> int:
        """Number of coordinates of one canary."""
        return self._layout.width

    @property
    def places(self) -> list[tuple[int, Tensor]]:
        """Index and positions of every tensor that is read, in the order of a reading."""
        return self._read_places

    def clipped_apart(self, norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """What is left along each canary when every tensor clips its own part to its own norm.

        A tensor leaves its clip norm of the part in it; along the canary that counts with the
        root of the share of coordinates the part has.
        """
        owner = np.searchsorted(self._layout.edges, self._layout.owned, side="right") - 1
        counts = np.zeros((len(owner), norms.size))
        np.add.at(counts, (np.arange(len(owner))[:, None], owner.reshape(len(owner), -1)), 1.0)
        return np.asarray(np.sqrt(counts / self.width) @ norms)

    def parameter(self, index: int) -> int:
        """The parameter that a tensor of `places` is of."""
        return index

    def taken(self, number: int, tensor: Tensor) -> Tensor:
        """What a tensor like the one of the given place holds there."""
        return tensor.detach().take(self._read_places[number][1])

    def _held(self, tensors: Sequence[Tensor], index: int) -> Tensor | None:
        """A tensor to write to; None where another rank holds it."""
        return tensors[index].detach()

    def read(self, tensors: Sequence[Tensor]) -> Tensor:
        """What the tensors hold at every canary's and every watched coordinate, one flat tensor."""
        values = self._read_on_host(tensors) if self._on_host else None
        if values is not None:
            return values
        first = self._devices[0]
        parts = [
            tensors[index].detach().take(places).to(first) for index, places in self._read_places
        ]
        return torch.cat(parts).to(self._dtype)

    def _read_on_host(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """The same with numpy's gather, which takes a third of the time for few numbers.

        None where a tensor is of another number format.
        """
        read = torch.empty(self._read_size, dtype=self._dtype)
        values = read.numpy()
        for index, places, part in self._reads:
            tensor = tensors[index]
            if tensor.dtype is not self._dtype:
                return None
            tensor.detach().numpy().reshape(-1).take(places, out=values[part], mode="clip")
        return read

    def along(self, values: NDArray[Any]) -> NDArray[Any]:
        """What a flat reading, on the host, says about each canary."""
        return np.asarray(self._layout.along(values))

    def watched(self, values: NDArray[Any]) -> NDArray[Any]:
        """A flat reading, on the host, at the watched coordinates."""
        return np.asarray(self._layout.watched(values))

    def insert(
        self,
        tensors: Sequence[Tensor],
        included: NDArray[np.int64],
        clip_norm: float,
        only: int | None = None,
    ) -> None:
        """Add canaries, each of norm ``clip_norm``, to the tensors in place.

        Args:
            tensors: The tensors.
            included: Indices of the canaries.
            clip_norm: The norm of each.
            only: Index of the one tensor to change; None for all.
        """
        layout = self._layout
        ranks, height = layout.ranks[included], clip_norm / np.sqrt(self.width)
        # Those that are not included now get a zero: no sorting, and one copy to the device.
        heights = self._heights.numpy()
        heights[ranks] = height if layout.signs is None else height * layout.signs[included]
        parts = self._heights.to(self._devices[0]).split_with_sizes(self._insert_counts)
        for (index, places), part in zip(self._insert_places, parts, strict=True):
            tensor = None if only not in (None, index) else self._held(tensors, index)
            if tensor is not None:
                tensor.put_(places, part.to(tensor.device, tensor.dtype), accumulate=True)
        heights[ranks] = 0.0

    def fill_rows(self, rows: Sequence[Tensor], included: NDArray[np.int64], height: float) -> None:
        """Write each canary into a separate row: ``height`` at all its coordinates."""
        layout = self._layout
        owned = layout.owned[included].reshape(included.size, -1)
        values = np.full(owned.shape, height)
        if layout.signs is not None:
            values *= layout.signs[included]
        owner = np.searchsorted(layout.edges, owned, side="right") - 1
        for index in np.unique(owner).tolist():
            here = owner == index
            tensor = rows[index]
            size = tensor[0].numel()
            places = np.nonzero(here)[0] * size + owned[here] - layout.edges[index]
            heights = torch.from_numpy(values[here]).to(tensor.device, tensor.dtype)
            tensor.put_(torch.from_numpy(places).to(tensor.device), heights)


Facts = TypeVar("Facts")

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


def gather(facts: Facts, world: int, device: torch.device) -> list[Facts]:
    """What every rank found, in the order of the ranks; a collective call."""
    text = json.dumps(codec.to_plain(facts)).encode()
    own = torch.tensor(list(text), dtype=torch.uint8, device=device)
    lengths = torch.zeros(world, dtype=torch.int64, device=device)
    lengths[torch.distributed.get_rank()] = own.numel()
    torch.distributed.all_reduce(lengths)
    padded = torch.zeros(int(lengths.max()), dtype=torch.uint8, device=device)
    padded[: own.numel()] = own
    gathered = [torch.empty_like(padded) for _ in range(world)]
    torch.distributed.all_gather(gathered, padded)
    texts = [
        bytes(item[:length].tolist())
        for item, length in zip(gathered, lengths.tolist(), strict=True)
    ]
    return [codec.from_plain(type(facts), json.loads(item), "facts") for item in texts]


def shared_nonce(world: int, device: torch.device) -> str:
    """Random text that all ranks share."""
    drawn = torch.tensor(list(secrets.token_bytes(16)), device=device)
    if world > 1:
        torch.distributed.broadcast(drawn, src=0)
    return bytes(drawn.tolist()).hex()


def agree(facts: str, world: int, device: torch.device) -> None:
    """All ranks must insert and read the same canaries, or the sums they share mean nothing.

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


# --- parameters that ranks share out --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The rows of one parameter that one rank holds.

    Attributes:
        parameter: Index of the parameter.
        rank: Who holds them.
        size: Number of their entries.
    """

    parameter: int
    rank: int
    size: int


def is_sharded(parameters: Sequence[Tensor]) -> bool:
    """Whether any of them is shared out."""
    return any(isinstance(item, DTensor) for item in parameters)


def local(tensor: Any) -> Tensor:
    """What this rank holds of a tensor: all of it, where it is not shared out."""
    held: Tensor = tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor
    return held


def shards_of(parameters: Sequence[Tensor], names: Sequence[str]) -> list[Shard]:
    """All parts of all parameters, in the order of one flat vector.

    A parameter is split by rows, so that every part is a range of it; parts without entries, of
    ranks beyond the last row, are left out.

    Raises:
        UnsupportedError: A parameter is shared out in another way.
    """
    shards: list[Shard] = []
    for index, (item, name) in enumerate(zip(parameters, names, strict=True)):
        if not isinstance(item, DTensor):
            raise UnsupportedError(
                f"Expected every parameter to be shared out, parameter {name} is not. Wrap the "
                "whole model (FSDP2Wrapper, or fully_shard of the root), without ignored "
                "parameters."
            )
        mesh, placements = item.device_mesh, item.placements
        if mesh.ndim != 1 or not placements[0].is_shard(0):
            raise UnsupportedError(
                f"Expected parameters shared out by rows over a mesh of one dimension, parameter "
                f"{name} has placements {placements} on a mesh of {mesh.ndim}. Use one dimension "
                "of ranks (no replicated groups of shards), or record the run with "
                "askgauss.Recorder."
            )
        ranks, rows = mesh.size(), item.shape[0]
        # As torch.chunk does: all parts but the last ones have the same number of rows.
        most = -(-rows // ranks)
        held = [max(0, min(most, rows - rank * most)) for rank in range(ranks)]
        if held[mesh.get_local_rank()] != item.to_local().shape[0]:
            raise UnsupportedError(
                f"Expected rows of parameter {name} to be shared out evenly from the first rank "
                f"on, got {item.to_local().shape[0]} of {rows} on rank {mesh.get_local_rank()} of "
                f"{ranks}. Record the run with askgauss.Recorder."
            )
        row = item.numel() // max(rows, 1)
        shards += [
            Shard(parameter=index, rank=rank, size=count * row)
            for rank, count in enumerate(held)
            if count * row
        ]
    return shards


def divided_by(module: nn.Module) -> float | None:
    """What the sum over ranks is divided by as gradients are reduced; None where nobody can tell.

    Unless the user says otherwise, it is the number of ranks.
    """
    found: set[float | None] = set()
    for part in module.modules():
        ask: Any = getattr(part, "_get_fsdp_state", None)
        state = None if ask is None else ask()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [group] if (group := getattr(state, "_fsdp_param_group", None)) else []
        for group in groups:
            factor = getattr(group, "gradient_divide_factor", None)
            ranks = torch.distributed.get_world_size()
            found.add(float(ranks if factor is None else factor))
    return found.pop() if len(found) == 1 else None


class ShardedCoordinates(CanaryCoordinates):
    """Coordinates in parameters that ranks share out: read by all, written by their holders.

    Reading is a collective call: every rank has to make it, and all get the same numbers.

    Args:
        parameters: The parameters, in order.
        shards: Their parts, in the order of the canaries' flat vector.
        canaries: The canaries, over the parts.
    """

    collective = True

    def __init__(
        self,
        parameters: Sequence[Tensor],
        shards: Sequence[Shard],
        canaries: DiracCanaries | BlockCanaries,
    ) -> None:
        self._shards = list(shards)
        first: Any = parameters[0]
        self._rank, self._group = first.device_mesh.get_local_rank(), first.device_mesh.get_group()
        self._placements = first.placements
        # Of every part the shape alone, also of those that are elsewhere.
        super().__init__(
            [local(parameters[item.parameter]).new_zeros(1).expand(item.size) for item in shards],
            canaries,
        )
        self._length = sum(len(places) for _, places in self.places)
        starts, kept = 0, []
        for index, places in self.places:
            if self._shards[index].rank == self._rank:
                kept.append(torch.arange(starts, starts + len(places)))
            starts += len(places)
        self._kept = torch.cat(kept or [torch.zeros(0, dtype=torch.int64)]).to(self._devices[0])

    def parameter(self, index: int) -> int:
        """The parameter that a part is of."""
        return self._shards[index].parameter

    def _held(self, tensors: Sequence[Tensor], index: int) -> Tensor | None:
        shard = self._shards[index]
        if shard.rank != self._rank:
            return None
        tensor: Any = tensors[shard.parameter]
        if tensor.placements != self._placements:
            # What was computed from whole tensors is whole on every rank.
            tensor = tensor.redistribute(placements=self._placements)
        return local(tensor)

    def read(self, tensors: Sequence[Tensor]) -> Tensor:
        """What the tensors hold at every canary's and every watched coordinate, on every rank."""
        whole = torch.zeros(self._length, dtype=self._dtype, device=self._devices[0])
        held = [
            part.take(places).to(whole)
            for index, places in self.places
            if (part := self._held(tensors, index)) is not None
        ]
        if held:
            whole[self._kept] = torch.cat(held)
        torch.distributed.all_reduce(whole, group=self._group)
        return whole

    def taken(self, number: int, tensor: Tensor) -> Tensor:
        """What a tensor like the one of the given place holds there, on every rank."""
        index, places = self.places[number]
        held = torch.zeros(len(places), dtype=tensor.dtype, device=self._devices[0])
        if self._shards[index].rank == self._rank:
            held.copy_(local(tensor).take(places))
        torch.distributed.all_reduce(held, group=self._group)
        return held
