"""DP-FTRL for torch, with an audit built in.

::

    from askgauss.integrations.torch_ftrl import DPFTRL

    model = GradSampleModule(model)
    optimizer = DPFTRL(model, learning_rate=0.5, clip_norm=1.0, noise_multiplier=5.0, steps=64,
                       canaries=5000)
    for features, target in loader:
        loss(model(features), target).backward()
        optimizer.step()
    print(optimizer.result(claim=claim))

Each step is one leaf of a tree: the per-example gradients, clipped and summed. The weights are the
first ones less the learning rate times the noisy prefix sum, whose noise the tree correlates so
that it grows with the logarithm of the steps (arXiv 2103.00039). Nothing is sampled, and the
guarantee rests on how often a record takes part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.canaries import DiracCanaries, fresh_seed
from askgauss.checks.scope import AFTER_CLIPPING
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    MissingExtraError,
    RecordingError,
    UnsupportedError,
)
from askgauss.files import codec
from askgauss.mechanisms import tree
from askgauss.mechanisms.decorrelate import NodeSums
from askgauss.mechanisms.plans import TreePlan
from askgauss.mechanisms.strategy import Draw
from askgauss.recording.injection import Seam
from askgauss.recording.linear_recorder import LinearRecorder
from askgauss.recording.transcript import LinearTranscript

try:
    import torch
    from opacus.grad_sample import AbstractGradSampleModule
except ImportError as error:
    raise MissingExtraError(
        "askgauss.integrations.torch_ftrl needs torch and Opacus: pip install 'askgauss[opacus]'."
    ) from error

from askgauss.auditing import AuditedRun

__all__ = ["DPFTRL"]

_SCHEMA = 2
# What a state consists of.
_TENSORS = ("first", "sums", "velocity")
_KEYS = ("schema", "run", *_TENSORS, "noise", "generator", "attendance", "attended", "audit")


class DPFTRL(AuditedRun[()]):
    """Trains a model with DP-FTRL: call `step` after each backward pass.

    A checkpoint, and this object itself, hold sums without noise: keep them as secret as the data.
    Noise comes from torch's generator, which is fast and not made for cryptography.

    Args:
        model: The model in Opacus' ``GradSampleModule``; its trainable parameters are trained.
        learning_rate: Step size on the prefix sums.
        clip_norm: Largest norm of one example's gradient.
        noise_multiplier: Noise standard deviation of one tree node, in clip norms; see
            `askgauss.mechanisms.plans.TreePlan`.
        steps: Steps in all, the number the privacy was accounted for.
        estimator: ``honaker`` has less noise, ``plain`` draws less of it; same privacy.
        restart_every: Start a new tree after so many steps.
        completion: Fill up a tree with empty leaves before it is left; account for it.
        participations: Most steps one record takes part in.
        min_separation: Least distance between two of them.
        momentum: Of the prefix sums; costs no privacy.
        expected_batch_size: Divides the sums, so that the learning rate is that of a mean.
        seed: Of the noise, and of canaries given by number, to repeat a run; drawn from the
            operating system if not given. An adversary who knows it can subtract the noise.
        canaries: How many, each inserted with probability one half; or canaries made by you over
            the flat vector of trainable parameters; none if not given.
        release: What the audit sees: ``prefixes``, which the training uses, or ``nodes``, all that
            the accounting covers (the noise is then read where it is drawn; ``honaker`` only).
        background: Whether to subtract the other records' clean sums, which the auditor can see.

    Raises:
        InvalidArgumentError: An argument is outside its range.
        UnsupportedError: The model or the combination of arguments cannot be trained or audited.

    Examples:
        >>> import torch
        >>> from opacus.grad_sample import GradSampleModule
        >>> model = GradSampleModule(torch.nn.Linear(20, 1))
        >>> optimizer = DPFTRL(model, learning_rate=0.1, clip_norm=1.0, noise_multiplier=2.0,
        ...                    steps=4, canaries=DiracCanaries(present=5, absent=10, dimension=21))
        >>> for _ in range(4):
        ...     model(torch.randn(8, 20)).square().mean().backward()
        ...     optimizer.step()
        >>> optimizer.transcript()
        LinearTranscript(steps=4, release='prefixes', present=5, absent=10, background='known')
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        learning_rate: float,
        clip_norm: float,
        noise_multiplier: float,
        steps: int,
        estimator: Literal["plain", "honaker"] = "honaker",
        restart_every: int | None = None,
        completion: bool = False,
        participations: int = 1,
        min_separation: int = 1,
        momentum: float = 0.0,
        expected_batch_size: float = 1.0,
        seed: int | None = None,
        canaries: int | DiracCanaries | None = None,
        release: Literal["prefixes", "nodes"] = "prefixes",
        background: Literal["known", "unknown"] = "known",
    ) -> None:
        if not isinstance(model, AbstractGradSampleModule):
            raise InvalidArgumentError(
                f"Expected model to be in Opacus' GradSampleModule, got {type(model).__name__}. "
                "Wrap it: GradSampleModule(model)."
            )
        _validate.positive(
            learning_rate=learning_rate,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            expected_batch_size=expected_batch_size,
        )
        _validate.within(0, 1, closed="left", momentum=momentum)
        _validate.one_of(("plain", "honaker"), estimator=estimator)
        _validate.one_of(("known", "unknown"), background=background)
        self._plan = TreePlan(
            steps=steps,
            estimator=estimator,
            release=release,
            restart_every=restart_every,
            completion=completion,
            participations=participations,
            min_separation=min_separation,
        )
        named = [(name, item) for name, item in model.named_parameters() if item.requires_grad]
        self._names = tuple(name.removeprefix("_module.") for name, _ in named)
        self._parameters = [item for _, item in named]
        if len({item.device for item in self._parameters}) != 1:
            raise UnsupportedError(
                "Expected trainable parameters on one device, got "
                f"{sorted({str(item.device) for item in self._parameters}) or 'none'}."
            )
        self._model = model
        self._clip_norm = float(clip_norm)
        self._noise_multiplier = float(noise_multiplier)
        self._rate = float(learning_rate) / float(expected_batch_size)
        self._momentum = float(momentum)
        self._generator = torch.Generator(self._parameters[0].device)
        if seed is not None:
            _validate.integer(0, seed=seed)
        self._generator.manual_seed(fresh_seed() if seed is None else int(seed))
        self._first = [_working_copy(item) for item in self._parameters]
        self._sums = [torch.zeros_like(item) for item in self._first]
        self._velocity = [torch.zeros_like(item) for item in self._first]
        self._attendance: dict[int, list[int]] = {}
        self._attended: bool | None = None
        # False while a step is taken: one that failed half way leaves noise nobody knows.
        self._whole = True
        self._audit: _Audit | None = None
        if canaries is not None:
            self._audit = _Audit(
                self._first,
                _checked_canaries(canaries, self._first, seed),
                self._plan,
                clip_norm=self._clip_norm,
                noise_multiplier=self._noise_multiplier,
                known=background == "known",
            )
        self._noise = [
            self._plan.stream(self._draw_for(index)) for index in range(len(self._parameters))
        ]

    def _draw_for(self, index: int) -> Draw:
        """Fresh noise of one node for one tensor; an audit of nodes looks at it in passing."""
        like = self._first[index]
        scale = self._noise_multiplier * self._clip_norm

        def draw(out: Any) -> Any:
            noise = torch.empty_like(like) if out is None else out
            noise.normal_(0.0, scale, generator=self._generator)
            if self._audit is not None:
                self._audit.catch(index, noise)
            return noise

        return draw

    @property
    def steps_taken(self) -> int:
        """Number of steps taken so far."""
        return self._noise[0].step

    @property
    def canaries(self) -> DiracCanaries:
        """Who is planted where.

        Raises:
            RecordingError: The run has no audit.
        """
        return self._audited().canaries

    def __repr__(self) -> str:
        audit = "no audit" if self._audit is None else f"{self._audit.canaries.size} canaries"
        return f"DPFTRL(step {self.steps_taken} of {self._plan.steps}, {audit})"

    def epsilon(self, *, delta: float) -> float:
        """The epsilon of the whole run as it was planned."""
        return self._plan.epsilon(noise_multiplier=self._noise_multiplier, delta=delta)

    def zero_grad(self) -> None:
        """Forget gradients; `step` does so by itself."""
        for parameter in self._parameters:
            parameter.grad = None
            parameter.grad_sample = None

    def step(self, *, records: Iterable[int] | None = None) -> None:
        """Take one step with the gradients of the last backward pass, and forget them.

        Args:
            records: Which records the batch holds, by any number of their own; checked against what
                was declared. Give them in every step or in none.

        Raises:
            RecordingError: A step more than planned, without gradients or with a record that came
                too often. Nothing is released then, and the step may be tried again; after any
                other error load the last checkpoint.
        """
        step = self._check_next()
        attended = self._check_attendance(records, step)
        sums = self._clipped_sums()
        self._whole = False
        for record, entered in attended.items():
            self._attendance[record] = entered
        self._attended = records is not None
        with torch.no_grad():
            if self._audit is not None:
                sums = self._audit.plant(sums)
            released = []
            for total, addend, noise in zip(self._sums, sums, self._noise, strict=True):
                total += addend
                released.append(total + noise.next(step))
            if self._audit is not None:
                self._audit.observe(released)
            for velocity, prefix in zip(self._velocity, released, strict=True):
                torch.add(prefix, velocity, alpha=self._momentum, out=velocity)
            self._write_parameters()
        self.zero_grad()
        self._whole = True

    def _check_next(self) -> int:
        step = self.steps_taken
        if not self._whole:
            raise RecordingError(
                f"Step {step + 1} failed half way, so its noise is no longer known. Load the last "
                "checkpoint into a new DPFTRL."
            )
        if step >= self._plan.steps:
            raise RecordingError(
                f"The run was planned and accounted for {step} steps, and all were taken. Plan for "
                "more steps before training."
            )
        return step

    def _check_attendance(self, records: Iterable[int] | None, step: int) -> dict[int, list[int]]:
        """The leaves of every record in the batch, this one included."""
        if self._attended not in (None, records is not None):
            raise RecordingError("Expected records in every step or in none.")
        attended: dict[int, list[int]] = {}
        for given in () if records is None else records:
            record = int(given)
            entered = attended.get(record) or self._attendance.get(record, [])
            attended[record] = [*entered, step]
            tree.check_participation(
                attended[record],
                steps=self._plan.steps,
                participations=self._plan.participations,
                min_separation=self._plan.min_separation,
            )
        return attended

    def _clipped_sums(self) -> list[torch.Tensor]:
        """The leaf: each example's gradient clipped as a whole, then added up."""
        samples = [
            _per_example(parameter, name).to(like.dtype)
            for parameter, name, like in zip(
                self._parameters, self._names, self._first, strict=True
            )
        ]
        rows = {len(sample) for sample in samples}
        if len(rows) != 1:
            raise RecordingError(
                f"Expected gradients of the same examples for every parameter, got {sorted(rows)}. "
                "Freeze parameters that only some examples reach, or that are used twice."
            )
        with torch.no_grad():
            norms = torch.stack(
                [
                    sample.reshape(len(sample), -1 if len(sample) else 1).norm(dim=1)
                    for sample in samples
                ]
            ).norm(dim=0)
            if not bool(torch.isfinite(norms).all()):
                raise RecordingError(
                    f"Step {self.steps_taken + 1} has nan or infinite gradients: they cannot be "
                    "clipped. Find where they come from."
                )
            factors = (self._clip_norm / norms).clamp(max=1.0)
            return [torch.tensordot(factors, sample, dims=1) for sample in samples]

    def _write_parameters(self) -> None:
        for parameter, first, velocity in zip(
            self._parameters, self._first, self._velocity, strict=True
        ):
            parameter.copy_(first - self._rate * velocity)

    def _audited(self) -> _Audit:
        if self._audit is None:
            raise RecordingError("This run has no audit. Give DPFTRL canaries= before training.")
        return self._audit

    def transcript(self) -> LinearTranscript:
        """What the steps so far released about the canaries.

        Raises:
            RecordingError: The run has no audit, or no canary has entered it yet.
        """
        recorded = self._audited().recorder.transcript()
        formats = {str(item.dtype).removeprefix("torch.") for item in self._parameters}
        return recorded.with_facts(
            replace(
                recorded.facts,
                tensors=self._names,
                exercised=AFTER_CLIPPING,
                precision=tuple(sorted(formats)),
            )
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume, the weights too: tensors and plain values.

        It holds sums without noise, and the state of the noise to come: keep it secret.
        """
        if not self._whole:
            raise RecordingError("The last step failed half way: there is no state to save.")
        return {
            "schema": _SCHEMA,
            "run": self._description(),
            **{name: [item.clone() for item in self._tensors(name)] for name in _TENSORS},
            "noise": [noise.state_dict() for noise in self._noise],
            "generator": self._generator.get_state(),
            "attendance": {record: list(leaves) for record, leaves in self._attendance.items()},
            "attended": self._attended,
            "audit": None if self._audit is None else self._audit.state_dict(),
        }

    def _tensors(self, name: str) -> list[torch.Tensor]:
        return {"first": self._first, "sums": self._sums, "velocity": self._velocity}[name]

    def _description(self) -> dict[str, Any]:
        return {
            "plan": codec.to_plain(self._plan),
            "clip_norm": self._clip_norm,
            "noise_multiplier": self._noise_multiplier,
            "momentum": self._momentum,
            "audited": self._audit is not None,
            "shapes": [list(item.shape) for item in self._first],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where `state_dict` was taken, with the same model and settings.

        Raises:
            FileFormatError: The state is incomplete or of a newer schema.
            RecordingError: The state belongs to another run.
        """
        missing = set(_KEYS) - set(state)
        if missing:
            raise FileFormatError(f"The checkpoint lacks {', '.join(sorted(missing))}.")
        if state["schema"] != _SCHEMA:
            raise FileFormatError(
                f"The checkpoint has schema {state['schema']!r}; this version reads {_SCHEMA}. "
                "Update askgauss."
            )
        for name, mine in self._description().items():
            if state["run"].get(name) != mine:
                raise RecordingError(
                    f"Expected a checkpoint of this run, got one whose {name} is "
                    f"{state['run'].get(name)!r} where this run has {mine!r}."
                )
        self._whole = False
        if self._audit is not None:
            self._audit.load_state_dict(state["audit"])
        with torch.no_grad():
            for name in _TENSORS:
                for target, source in zip(self._tensors(name), state[name], strict=True):
                    target.copy_(source)
            device = self._first[0].device
            for noise, saved in zip(self._noise, state["noise"], strict=True):
                stack = [item.to(device) for item in saved["stack"]]
                noise.load_state_dict({**saved, "stack": stack})
            self._write_parameters()
        self._generator.set_state(state["generator"].cpu())
        self._attendance = {key: list(leaves) for key, leaves in state["attendance"].items()}
        self._attended = state["attended"]
        self.zero_grad()
        self._whole = True


def _working_copy(parameter: torch.nn.Parameter) -> torch.Tensor:
    """In single precision at least: half of it would round small noise away."""
    wide = torch.float64 if parameter.dtype == torch.float64 else torch.float32
    return parameter.detach().to(wide, copy=True)


def _per_example(parameter: torch.nn.Parameter, name: str) -> torch.Tensor:
    sample = getattr(parameter, "grad_sample", None)
    if sample is None:
        raise RecordingError(
            f"Expected per-example gradients for every parameter, {name} has none. Call backward() "
            "before step(), and freeze parameters that the loss does not reach before training."
        )
    return torch.cat(sample) if isinstance(sample, list) else sample


def _checked_canaries(
    given: int | DiracCanaries, tensors: Sequence[torch.Tensor], seed: int | None
) -> DiracCanaries:
    sizes = tuple(item.numel() for item in tensors)
    if isinstance(given, DiracCanaries):
        if given.total_dimension != sum(sizes):
            raise _validate.fail(
                "canaries",
                given.total_dimension,
                f"over the {sum(sizes)} trainable parameters",
                f"Make them with DiracCanaries(tensors={list(sizes)[:4]}...).",
            )
        return given
    _validate.integer(4, canaries=given)
    return DiracCanaries(count=given, tensors=sizes, seed=seed)


class _Audit:
    """Plants canaries in leaves and hands what is released about them to the recorder."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        canaries: DiracCanaries,
        plan: TreePlan,
        *,
        clip_norm: float,
        noise_multiplier: float,
        known: bool,
    ) -> None:
        if plan.release == "nodes" and plan.estimator == "plain":
            raise UnsupportedError(
                "A plain tree draws noise for the nodes of its prefixes only, so that the prefixes "
                "say all there is. Audit release='prefixes', or train with estimator='honaker'."
            )
        self.canaries = canaries
        self.recorder = LinearRecorder(
            canaries, plan, clip_norm=clip_norm, noise_multiplier=noise_multiplier
        )
        self._clip_norm = clip_norm
        self._known = known
        self._seam = Seam(list(tensors), lambda _: canaries)
        self._caught: list[list[torch.Tensor]] = [[] for _ in tensors]
        self._leaf = np.zeros((2, canaries.size))
        self._clean = np.zeros(canaries.size)
        self._nodes = NodeSums(plan)
        self._before = [torch.zeros_like(item) for item in tensors]

    def catch(self, index: int, noise: torch.Tensor) -> None:
        """Look at the noise of a node as it is drawn for one tensor."""
        if self.recorder.plan.release == "nodes":
            self._caught[index].append(self._seam.read_leaf(index, noise))

    def plant(self, sums: list[torch.Tensor]) -> list[torch.Tensor]:
        """The clipped sums with the canaries of this step; what was there is remembered."""
        entered = np.zeros(self.canaries.size, dtype=np.bool_)
        entered[self.recorder.sample()] = True
        planted: list[torch.Tensor] = self._seam.plant(sums, entered, clip_norm=self._clip_norm)
        self._leaf = np.stack([self._read(sums), self._read(planted)])
        return planted

    def observe(self, released: Sequence[torch.Tensor]) -> None:
        """Record what the step released."""
        prefix = self._read(released)
        norm = _norm(released)
        change = [after - before for after, before in zip(released, self._before, strict=True)]
        cosines = np.stack([prefix / norm, self._read(change) / _norm(change)])
        self._clean += self._leaf[0]
        values, background = prefix, self._clean
        if self.recorder.plan.release == "nodes":
            sums = np.stack(self._nodes.push(self._leaf), axis=1)
            drawn = zip(*self._caught, strict=True)
            noise = [self._along(self._seam.joined(list(parts))) for parts in drawn]
            background, values = sums[0], sums[1] + np.stack(noise)
            for caught in self._caught:
                caught.clear()
        self.recorder.observe(
            values, background=background if self._known else None, cosines=cosines
        )
        self._before = list(released)

    def _read(self, tensors: Sequence[torch.Tensor]) -> NDArray[np.float64]:
        return self._along(self._seam.read(list(tensors)))

    def _along(self, values: torch.Tensor) -> NDArray[np.float64]:
        along = self._seam.along(values.cpu().numpy())
        return np.asarray(along, dtype=np.float64)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume: tensors and plain values."""
        recorder = self.recorder.state_dict()
        plain = recorder.pop("state")
        return {
            "known": self._known,
            "state": plain,
            "recorder": {name: torch.from_numpy(array) for name, array in recorder.items()},
            "clean": torch.from_numpy(self._clean.copy()),
            "nodes": [torch.from_numpy(array.copy()) for array in self._nodes.open],
            "before": [item.clone() for item in self._before],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where `state_dict` was taken."""
        if state["known"] != self._known:
            raise RecordingError("Expected a checkpoint with the same background= as this run.")
        arrays = {name: item.cpu().numpy() for name, item in state["recorder"].items()}
        self.recorder.load_state_dict({**arrays, "state": state["state"]})
        self._clean = state["clean"].cpu().numpy().copy()
        self._nodes.resume(
            self.recorder.steps, [item.cpu().numpy().copy() for item in state["nodes"]]
        )
        for target, source in zip(self._before, state["before"], strict=True):
            target.copy_(source)


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    return float(torch.stack([item.double().square().sum() for item in tensors]).sum().sqrt())
