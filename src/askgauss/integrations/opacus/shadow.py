"""Weights: where each release should have moved them, and what else moved them."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from askgauss.checks.registry import made
from askgauss.checks.step_invariants import loaded_state, moved_by_the_release
from askgauss.integrations.attachment import Attachment
from askgauss.integrations.opacus.private_step import Observer, PrivateStep
from askgauss.integrations.opacus.ranks import CanaryCoordinates, local
from askgauss.integrations.opacus.run_description import (
    TrainingRun,
    counted_steps,
    gradients,
    is_inner_step,
    not_of_one_step,
)
from askgauss.monitor import Monitor
from askgauss.recording.facts.weights import WeightFacts, WeightMove, WeightWitness
from askgauss.recording.transcript import Transcript
from askgauss.results import Consequence, Status

__all__ = ["OutsideParameters", "ResumedWeights", "Shadow", "ShadowState", "acts_elementwise"]

# Classes whose step treats every coordinate by itself, as their documentation defines them.
_ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.ASGD,
    torch.optim.Rprop,
)
# States that are remembered, and how far the last bits may put two of them apart.
_MOST_KNOWN = 4096
_STATE_OFF = 1e-4
# Where the digest of a state would stand that nothing explains.
_UNEXPLAINED = "unexplained"
# Entries of a parameter that are compared to tell whether it moved.
_SAMPLED = 1024
# What a foreign class may keep beside its groups and state, if it is to be copied safely.
_PLAIN = (int, float, str, bool, type(None))
_BASE = frozenset(vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)))
# What a scheduler hangs on the optimizer it steps.
_SCHEDULED = frozenset({"step", "_opt_called", "_step_count"})


@dataclass(slots=True)
class _Part:
    """Followed places that lie next to each other and are treated alike, as one small parameter."""

    group: int
    small: nn.Parameter
    state: dict[str, Any]
    idle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowState:
    """What is kept of a shadow optimizer in a checkpoint.

    Attributes:
        moves: What was seen so far.
        optimizer: A digest of the real optimizer's state at the followed places; empty where it is
            not read, and that of no state where the releases do not explain it.
    """

    moves: WeightFacts
    optimizer: str = ""


class Shadow(Observer):
    """Follows the weights at some coordinates, and detects what else moved them.

    An optimizer that treats every coordinate by itself does to a few of them what it does to all.
    So the few are kept as small parameters of an optimizer of the same class, with the options the
    real one has in that step; it is fed the gradient that was observed, and must end where the real
    weights are. Its state is its own: only the weights are taken from the run before each step.

    A state that is loaded is taken over if it is the one that the releases led to, or one that this
    run had when it was saved. Of any other nobody knows what it was made from.

    Numbers are compared when the next step begins, so that nothing waits for a device.

    Args:
        run: The training.
        places: The coordinates.
        declare: How the user declares postprocessing, for what is advised.
    """

    key = "shadow"
    state_type = ShadowState

    def __init__(self, run: TrainingRun, places: CanaryCoordinates, declare: str) -> None:
        self._run, self._count, self._declare = run, run.count, declare
        self._optimizer = optimizer = run.optimizer.original_optimizer
        self._parameters = run.parameters
        self._places = places
        looked = places.places
        tensor = np.concatenate([np.full(len(at), index) for index, at in looked])
        spacing = {
            index: torch.finfo(self._parameters[places.parameter(index)].dtype).eps
            for index, _ in looked
        }
        self._comparison = WeightWitness(
            optimizer=type(optimizer).__name__,
            unchecked=acts_elementwise(optimizer),
            precision=np.array([spacing[index] for index in tensor.tolist()]),
            tensor=tensor,
            names=run.tensor_names,
        )
        audited = {id(item) for item in self._parameters}
        self._bare = {
            f"{tuple(item.shape)} of group {number}": (item, _sample(item))
            for number, group in enumerate(optimizer.param_groups)
            for item in group["params"]
            if id(item) not in audited
        }
        self._idle: tuple[bool, ...] = ()
        self._parts: list[_Part] = []
        self._twin: torch.optim.Optimizer | None = None
        self._after: Tensor | None = None
        self._before: Tensor | None = None
        self._read: Tensor | None = None
        # Which of the followed weights ever moved, and which ever had a gradient of a record.
        self._moved: Tensor | None = None
        self._reached: Tensor | None = None
        # A step that is over and not compared yet, since its numbers may still be on their way: its
        # number, whether a state was loaded before it, and the tensors of a `WeightMove`.
        self._pending: tuple[int, bool, dict[str, Tensor]] | None = None
        # Whether the optimizer's state must be a known one as its next step begins; and the digests
        # of those it had whenever it was saved, the oldest first.
        self._doubted = self._loaded = False
        self._known: dict[str, None] = {}
        # Steps that the accountant had counted when the audit was last left.
        self._left_at: int | None = None

    def facts(self, recorded: Transcript) -> dict[str, Any]:
        """How the weights moved."""
        return {"weights": replace(self._found(), declare=self._declare)}

    def _found(self) -> WeightFacts:
        self._judge()
        trained = {name: kept for name, kept in self._bare.items() if kept[0].requires_grad}
        moved = tuple(
            name for name, (item, old) in self._bare.items() if not torch.equal(old, _sample(item))
        )
        self._comparison.bare(tuple(trained), moved)
        if self._moved is not None and self._reached is not None:
            self._comparison.still(self._moved.cpu().numpy(), self._reached.cpu().numpy())
        return self._comparison.facts

    def inform(self, monitor: Monitor) -> None:
        """Tell the monitor how the weights moved in the steps that are over."""
        self._judge()
        if self._comparison.all_alike:
            # In nearly every step; words would cost more than all else that is told.
            monitor.check_weights(0.0, 0.0)
            return
        facts = self._comparison.facts
        found = list(made((moved_by_the_release, loaded_state), facts))
        failed = [item for item in found if item.status is Status.FAIL]
        breach = next((item for item in failed if item.consequence is Consequence.BREACH), None)
        if breach is not None:
            monitor.breach("weights", breach.summary)
        elif found[0].status is not Status.NOT_RUN:
            monitor.check_weights(0.0, 0.0)

    def state(self) -> ShadowState:
        """What to resume from.

        Ranks that share parameters out could only read the optimizer's state together, and do not.
        """
        return ShadowState(moves=self._found_at_save(), optimizer=self._digest_at_save())

    def _found_at_save(self) -> WeightFacts:
        """What was seen so far, and whether weights have changed since the last step.

        Who resumes from here has those weights. This run may still restore them before its next
        step, as where averaged weights are saved in between, and is looked at then.
        """
        found, after = self._found(), self._after
        if after is None or self._places.collective or self._trained_elsewhere():
            return found
        now = _host(self._places.read(self._parameters))
        return self._comparison.changed(_host(after), now, self._count.recorded + 1)

    def _trained_elsewhere(self) -> bool:
        """Whether steps were taken since the audit was left.

        They have moved the weights. Without any, weights must be as they were then.
        """
        return self._left_at is not None and self._left_at != counted_steps(self._run.accountant)

    def _digest_at_save(self) -> str:
        """A digest of the optimizer's state, which no state has where nothing explains it."""
        found = self._kept()
        if found is None:
            return ""
        trusted = self._twin is None and not self._doubted
        return _digest(found) if trusted or self._explained(found) else _UNEXPLAINED

    def load(self, state: ShadowState, arrays: Mapping[str, Any], steps: int) -> None:
        """Resume."""
        self._forget()
        self._after = None
        self._comparison.load(state.moves)
        if state.optimizer:
            self._know(state.optimizer)
            self._doubted = True

    def _kept(self) -> dict[str, Tensor] | None:
        """What the optimizer keeps at the followed places; None where it is not read."""
        if self._comparison.unchecked or self._places.collective:
            return None
        return _state(_joined(self._optimizer, self._parameters, self._places))

    def attach(self, attachment: Attachment) -> None:
        """Begin to follow."""
        self._forget()
        elsewhere = self._trained_elsewhere()
        if elsewhere:
            self._after = None
        self._left_at = None
        # What was loaded since then is looked at; what was trained elsewhere is not known here.
        self._doubted = self._doubted or (self._comparison.begun and not elsewhere)
        optimizer = self._optimizer
        attachment.undo(self._leave)
        attachment.hook(optimizer.register_step_post_hook, self._stepped)
        attachment.hook(optimizer.register_state_dict_post_hook, lambda *_: self._saved())
        attachment.hook(
            optimizer.register_load_state_dict_post_hook,
            lambda *_: setattr(self, "_doubted", True),
        )

    def completed(self) -> None:
        """At the end of a run, weights must be as its last step left them.

        Ranks that share parameters out could only look together, and do not.
        """
        self._judge()
        if self._after is not None and not self._places.collective:
            before, self._after = self._after, self._places.read(self._parameters)
            step = self._count.recorded + 1
            self._comparison.between(_host(before), _host(self._after), step)

    def _forget(self) -> None:
        """Take the optimizer's state anew from the run when its next step begins.

        Where the last step left the weights stays known: to load a state writes none.
        """
        self._twin = self._before = self._read = None
        self._loaded = False

    def _saved(self) -> None:
        """The optimizer's state is being saved: it may come back, if it is the releases' own."""
        found = None if self._doubted else self._kept()
        if found is not None and (self._twin is None or _near(_state(self._parts), found)):
            self._know(_digest(found))

    def _leave(self) -> None:
        self._left_at = counted_steps(self._run.accountant)
        self._saved()
        found = self._kept() if self._twin is not None else None
        self._doubted = self._doubted or (found is not None and not self._explained(found))
        self._forget()

    def _know(self, state: str) -> None:
        self._known[state] = None
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def _explained(self, state: dict[str, Tensor]) -> bool:
        """Whether releases led to this state, or this run had it when it was saved."""
        own = self._twin is not None and _near(_state(self._parts), state)
        return own or _digest(state) in self._known

    def _look_at_state(self) -> None:
        """A state was loaded: take it over where it is known, and say so where it is not."""
        self._doubted, found = False, self._kept()
        if not found or not self._comparison.begun or self._explained(found):
            self._twin = None
            return
        # The twin continues with what was released for one more step, to measure the difference.
        self._comparison.loaded(self._count.recorded + 1)
        self._loaded = self._twin is not None

    @contextlib.contextmanager
    def postprocessing(self) -> Iterator[None]:
        """Changes to weights and state in here are postprocessing, as the user declares."""
        self._judge()
        yield
        self._after = self._twin = None
        self._doubted = False
        self._comparison.declare()

    def stepping(
        self,
        step: PrivateStep | None,
        applied: Tensor | None,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
    ) -> None:
        """As the real optimizer begins its step: what it is about to apply, and from where.

        A step without noise is not followed.
        """
        self._judge()
        if any(callable(item) for item in (*arguments[1:], *options.values())):
            self._comparison.closure()
        self._before = self._places.read(self._parameters)
        if self._after is not None and not self._equal(self._after, self._before):
            self._comparison.between(
                _host(self._after), _host(self._before), self._count.recorded + 1
            )
        if step is not None:
            reached = step.clean != 0
            self._reached = reached if self._reached is None else self._reached | reached
        if self._comparison.unchecked:
            return
        self._read = applied
        if applied is None:
            self._twin, self._doubted = None, False
            return
        idle = tuple(item.grad is None for item in self._parameters)
        if idle != self._idle:
            # Optimizers leave alone what has no gradient, such as a layer that was frozen.
            self._doubted, self._idle = self._doubted or self._twin is not None, idle
        if self._doubted:
            self._look_at_state()
        if self._twin is None:
            self._make_twin()

    def _make_twin(self) -> None:
        self._parts = _joined(self._optimizer, self._parameters, self._places)
        self._twin = _copied(self._optimizer)
        # Also an empty one, which the twin then fills.
        self._twin.state.update({part.small: part.state for part in self._parts})

    def _equal(self, one: Tensor, other: Tensor) -> bool:
        """Whether two readings are the same, where that can be told without waiting for a device.

        Where ranks read together, all of them take the second look.
        """
        on_host = one.device.type == "cpu" and not self._places.collective
        return on_host and torch.equal(one, other)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        """As the real optimizer ends its step."""
        guard = self._run.guard
        if not guard.reason and not is_inner_step(optimizer):
            with guard:
                self._follow()

    def _follow(self) -> None:
        before, read, self._read = self._before, self._read, None
        loaded, self._loaded = self._loaded, False
        self._after = self._places.read(self._parameters)
        if before is not None:
            changed = before != self._after
            self._moved = changed if self._moved is None else self._moved | changed
        if self._twin is None or read is None or before is None:
            return
        with torch.no_grad():
            self._step_twin(before, read)
        expected = torch.cat([part.small.detach().to(read) for part in self._parts])
        if not loaded and self._equal(expected, self._after):
            self._comparison.moved_alike()
            return
        self._pending = (
            self._count.recorded,
            loaded,
            {
                "before": before,
                "after": self._after,
                "expected": expected,
                "read": read,
                # As it stands after the step.
                "applied": self._places.read(gradients(self._parameters)),
            },
        )
        if loaded:
            self._twin = None

    def _step_twin(self, before: Tensor, read: Tensor) -> None:
        assert self._twin is not None
        sizes = [part.small.numel() for part in self._parts]
        starts, gradients = before.split_with_sizes(sizes), read.split_with_sizes(sizes)
        # The options of this step: schedules write them into the groups.
        self._twin.param_groups = [
            {name: value for name, value in group.items() if name not in ("params", "param_names")}
            | {"params": []}
            for group in self._optimizer.param_groups
        ]
        for start, gradient, part in zip(starts, gradients, self._parts, strict=True):
            small = part.small
            small.data = start.to(small.device, small.dtype, copy=True)
            small.grad = None if part.idle else gradient.to(small.device, small.dtype)
            self._twin.param_groups[part.group]["params"].append(small)
        _plain_step(self._twin)

    def _judge(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        step, loaded, tensors = pending
        move = WeightMove(**{name: _host(value) for name, value in tensors.items()})
        if loaded:
            self._comparison.loaded_move(move)
        elif not self._comparison.move(move, step):
            # Its state may be another one now: go on from the real one's.
            self._twin = None


class OutsideParameters(Observer):
    """Parameters of the model that the private optimizer does not have.

    Args:
        run: The training; without its model, nothing is known of them.
    """

    def __init__(self, run: TrainingRun) -> None:
        inside = {id(item) for group in run.optimizer.param_groups for item in group["params"]}
        self._known = run.model is not None
        self._outside = {
            name.removeprefix("_module."): item
            for name, item in (() if run.model is None else run.model.named_parameters())
            if id(item) not in inside
        }
        self._could_train = tuple(
            name for name, item in self._outside.items() if item.requires_grad
        )
        self._before = {name: _sample(item) for name, item in self._outside.items()}

    def facts(self, recorded: Transcript) -> dict[str, Any]:
        """Those that could train when the audit was made, or can now, and those that moved."""
        able = (name for name, item in self._outside.items() if item.requires_grad)
        names = tuple(dict.fromkeys((*self._could_train, *able)))
        return {"outside": names if self._known else None, "outside_moved": self._moved()}

    @contextlib.contextmanager
    def postprocessing(self) -> Iterator[None]:
        """What changes in here is postprocessing, as the user declares."""
        moved = self._moved()
        yield
        kept = {name: item for name, item in self._outside.items() if name not in moved}
        self._before |= {name: _sample(item) for name, item in kept.items()}

    def _moved(self) -> tuple[str, ...]:
        """Those that are no longer what they were, frozen ones too: something trains them."""
        return tuple(
            name
            for name, item in self._outside.items()
            if not torch.equal(self._before[name], _sample(item))
        )


class ResumedWeights(Observer):
    """Whether a run that is resumed continues with the weights of its checkpoint.

    Args:
        run: The training.
        places: The coordinates at which they are compared; None for none.
    """

    key = "weights"
    state_type = str

    def __init__(self, run: TrainingRun, places: CanaryCoordinates | None) -> None:
        self._run, self._places = run, places
        self._expected = ""

    def state(self) -> str:
        """A short digest of the weights; empty where they are not read."""
        if self._places is None:
            return ""
        weights = _host(self._places.read(self._run.parameters))
        return hashlib.sha256(weights.tobytes()).hexdigest()[:32]

    def load(self, state: str, arrays: Mapping[str, Any], steps: int) -> None:
        """Compare with these before the next step."""
        self._expected = state

    def resuming(self, *, started: bool) -> None:
        """Refuse weights other than those that the checkpoint was written with."""
        if not started or not self._expected:
            return
        if self._expected != self.state():
            wanted = "the weights that the audit's checkpoint was written with"
            raise not_of_one_step(self._run, wanted, "others")
        self._expected = ""


def acts_elementwise(optimizer: torch.optim.Optimizer) -> str:
    """Why an optimizer's moves cannot be followed at single coordinates; empty where they can.

    Classes that are not known are tried: what they do to a matrix must be what they do to some of
    its entries alone.
    """
    if type(optimizer) in _ELEMENTWISE:
        return ""
    name = type(optimizer).__name__
    if type(optimizer).__module__.partition(".")[0] == "torch":
        return f"{name} does not treat every coordinate by itself"
    others = {key: value for key, value in vars(optimizer).items() if key not in _BASE | _SCHEDULED}
    if not all(isinstance(value, _PLAIN) for value in others.values()):
        return f"{name} is not known here, and keeps more than groups and state"
    try:
        with torch.random.fork_rng():
            alike = all(_same_apart(optimizer, scale) for scale in (1e-3, 1.0, 1e3))
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError):
        alike = False
    return "" if alike else f"{name} is not known here, and does not treat coordinates apart"


def _same_apart(optimizer: torch.optim.Optimizer, scale: float) -> bool:
    """Whether a matrix and some of its entries, as a vector, move alike through a few steps."""
    chance = torch.Generator().manual_seed(0)
    start = torch.randn(7, 5, generator=chance)
    chosen = torch.tensor([1, 8, 17, 30])
    whole, few = nn.Parameter(start.clone()), nn.Parameter(start.take(chosen))
    twins = [_copied(optimizer) for _ in range(2)]
    options = optimizer.param_groups[0]
    for twin, item in zip(twins, (whole, few), strict=True):
        twin.param_groups = [{**options, "params": [item]}]
    for _ in range(4):
        gradient = scale * torch.randn(7, 5, generator=chance)
        whole.grad, few.grad = gradient, gradient.take(chosen)
        for twin in twins:
            _plain_step(twin)
        moved = (few.detach() - start.take(chosen)).abs()
        off = (whole.detach().take(chosen) - few.detach()).abs()
        if not bool((off <= 1e-5 * (moved + few.detach().abs())).all()):
            return False
    return True


def _copied(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """An optimizer of the same class and settings, without parameters, state or hooks."""
    bare = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    twin = object.__new__(type(optimizer))
    own = {
        name: value
        for name, value in vars(optimizer).items()
        if name not in _BASE | _SCHEDULED and isinstance(value, _PLAIN)
    }
    twin.__dict__ = {**vars(bare), **own, "defaults": dict(optimizer.defaults)}
    twin.param_groups = []
    twin.state.clear()
    return twin


def _plain_step(optimizer: torch.optim.Optimizer) -> None:
    """The step of the class by itself: without hooks that others hang on every optimizer."""
    step: Any = type(optimizer).step
    if getattr(step, "hooked", False):
        step = step.__wrapped__
    step(optimizer)


def _joined(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    places: CanaryCoordinates,
) -> list[_Part]:
    """Weights and state at the places that are followed, in as few tensors as treat them alike.

    Classes that are not known here keep one for each of theirs.
    """
    known = type(optimizer) in _ELEMENTWISE
    group_of = {
        id(item): number
        for number, group in enumerate(optimizer.param_groups)
        for item in group["params"]
    }
    joined: list[tuple[_Part, Any]] = []
    for number, (index, _) in enumerate(places.places):
        real = parameters[places.parameter(index)]
        kept = optimizer.state.get(real) or {}
        own = {name for name, value in kept.items() if _by_entry(value, real)}
        taken = {name: _taken(value, real, places, number) for name, value in kept.items()}
        weights = places.taken(number, real)
        part = _Part(
            group=group_of[id(real)],
            small=nn.Parameter(weights),
            state=taken,
            idle=real.grad is None,
        )
        if joined and known:
            last, entries = joined[-1]
            if entries == own and _alike(last, part, own):
                state = {n: torch.cat([last.state[n], taken[n]]) for n in own}
                last.small = nn.Parameter(torch.cat([last.small.detach(), weights]))
                last.state = last.state | state
                continue
        joined.append((part, own))
    return [part for part, _ in joined]


def _alike(one: _Part, other: _Part, by_entry: set[str]) -> bool:
    """Whether an optimizer does the same to two parts, apart from what it keeps by entry."""
    if (one.group, one.idle) != (other.group, other.idle):
        return False
    if one.state.keys() != other.state.keys():
        return False
    if (one.small.device, one.small.dtype) != (other.small.device, other.small.dtype):
        return False
    return all(_same(one.state[n], other.state[n]) for n in one.state if n not in by_entry)


def _state(parts: Sequence[_Part]) -> dict[str, Tensor]:
    """What an optimizer keeps, one number a followed place; empty where it keeps nothing."""
    names = sorted({name for part in parts for name in part.state})
    return {name: torch.cat([_column(part, name) for part in parts]) for name in names}


def _column(part: _Part, name: str) -> Tensor:
    value, size = part.state.get(name), part.small.numel()
    if not isinstance(value, (Tensor, int, float)):
        return torch.full((size,), torch.nan, dtype=torch.float64)
    column = torch.as_tensor(value).detach().cpu().double().reshape(-1)
    return column if column.numel() == size else column[:1].expand(size)


def _near(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two states are the same but for the last bits."""
    return one.keys() == other.keys() and all(
        torch.allclose(
            one[name],
            other[name],
            rtol=_STATE_OFF,
            atol=_STATE_OFF * float(other[name].abs().nan_to_num().mean()),
            equal_nan=True,
        )
        for name in one
    )


def _digest(state: dict[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name, column in state.items():
        found.update(name.encode())
        found.update(column.contiguous().numpy().tobytes())
    return found.hexdigest()[:32]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        both = isinstance(one, Tensor) and isinstance(other, Tensor)
        return both and one.shape == other.shape and bool(torch.equal(one, other))
    return isinstance(one, _PLAIN) and type(one) is type(other) and one == other


def _by_entry(value: Any, real: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == real.shape and value.dim() > 0


def _taken(value: Any, real: Tensor, places: CanaryCoordinates, number: int) -> Any:
    """What the state says about some entries of a parameter."""
    if isinstance(value, Tensor):
        if value.shape == real.shape:
            return places.taken(number, value)
        return value.detach().clone()
    return value


def _sample(parameter: Tensor) -> Tensor:
    flat = local(parameter).detach().reshape(-1)
    return flat[:: max(-(-flat.numel() // _SAMPLED), 1)].clone()


def _host(values: Tensor) -> Any:
    return values.cpu().double().numpy()
