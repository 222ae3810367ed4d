"""Canaries that are clipped as examples are: rows of the clipped sum, and records of the data."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.canaries import DiracCanaries, ExampleCanaries
from askgauss.checks.scope import INPUT_SPACE
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.integrations.jax.plan import scheme_of
from askgauss.integrations.jax.state import (
    AuditState,
    ParameterTree,
    Readings,
    WrappedRun,
    checked_privatizer,
    named_as_in_jax_privacy,
)
from askgauss.recording.injection import Seam
from askgauss.recording.recorder import Recorder
from askgauss.recording.transcript import Transcript
from askgauss.sampling import Scheme

__all__ = ["CanaryLoss", "ExampleAudit", "PlantedRows"]


# A canary's gradient before clipping, in clip norms.
_FAR = 10.0


@jax.tree_util.register_pytree_node_class
class CanaryRows:
    """Stands where a batch stands: the canary of each row, -1 in rows that hold none."""

    def __init__(self, canary: Any) -> None:
        self.canary = canary

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.canary,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> CanaryRows:
        return cls(*children)


class CanaryLoss:
    """A loss that is the user's for his batches, and linear in one parameter for a canary's row."""

    def __init__(self, function: Callable[..., Any], seam: Seam, clip_norm: float) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._places = _Places(seam, clip_norm)
        self.met = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the user's function; canary rows among the arguments go through it too."""
        rows = [item for item in (*args, *kwargs.values()) if isinstance(item, CanaryRows)]
        if not rows:
            return self._function(*args, **kwargs)
        self.met = True
        return self._places.loss(jax.tree.leaves(args[0]), jnp.ravel(rows[0].canary)[0])

    @property
    def arguments(self) -> int:
        """How many arguments the loss needs, the parameters among them."""
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        needed = [
            item
            for item in inspect.signature(self._function).parameters.values()
            if item.kind in kinds and item.default is inspect.Parameter.empty
        ]
        return len(needed)


class _Places:
    """Which parameter each canary is the gradient of."""

    def __init__(self, seam: Seam, clip_norm: float) -> None:
        if not isinstance(seam.canaries, DiracCanaries):
            raise UnsupportedError(
                "Expected DiracCanaries to send through clipping, got "
                f"{type(seam.canaries).__name__}: one coordinate a canary is what a row holds."
            )
        edges, coordinates = seam.layout.edges, seam.canaries.coordinates
        self.tensor = np.searchsorted(edges, coordinates, side="right") - 1
        self.place = coordinates - edges[self.tensor]
        self.height = _FAR * clip_norm

    def loss(self, leaves: list[Any], canary: Any) -> Any:
        tensor, place = jnp.asarray(self.tensor)[canary], jnp.asarray(self.place)[canary]
        total = jnp.zeros(())
        for index, leaf in enumerate(leaves):
            value = leaf.reshape(-1)[jnp.where(tensor == index, place, 0)]
            total = total + jnp.where(tensor == index, value, 0.0).astype(jnp.float32)
        return jnp.where(canary >= 0, self.height * total, 0.0)


class PlantedRows:
    """The rows of a step: as many as any step plants, the rest empty.

    Args:
        seam: Where the canaries lie.
        clip_norm: The clip norm.
        planted: Who is planted, one row a step and one column a present canary.
    """

    def __init__(self, seam: Seam, clip_norm: float, planted: NDArray[np.bool_]) -> None:
        self._places = _Places(seam, clip_norm)
        self._present = np.flatnonzero(seam.canaries.member)
        self.count = int(planted.sum(axis=1).max(initial=0))

    def canary(self, drawn: Any) -> Any:
        """The canary of each row, -1 in empty ones."""
        (places,) = jnp.nonzero(drawn, size=self.count, fill_value=self._present.size)
        return jnp.append(jnp.asarray(self._present), -1)[places]

    def examples(self, leaves: tuple[Any, ...], drawn: Any) -> list[Any]:
        """The rows as gradients by example, to append to those of a batch."""
        canary = self.canary(drawn)
        tensor = jnp.asarray(self._places.tensor)[canary]
        place = jnp.asarray(self._places.place)[canary]
        rows = []
        for index, leaf in enumerate(leaves):
            flat = jnp.zeros((self.count, int(np.prod(leaf.shape[1:]))), leaf.dtype)
            height = jnp.where((tensor == index) & (canary >= 0), self._places.height, 0.0)
            places = jnp.where(tensor == index, place, 0)
            flat = flat.at[jnp.arange(self.count), places].add(height.astype(leaf.dtype))
            rows.append(flat.reshape(self.count, *leaf.shape[1:]))
        return rows

    def sums(
        self,
        clipped_grad: Callable[..., Any],
        loss: CanaryLoss,
        leaves: tuple[Any, ...],
        tree: ParameterTree,
        drawn: Any,
    ) -> tuple[Any, ...]:
        """What the user's own clipping makes of the rows."""
        if not self.count:
            return tuple(jnp.zeros_like(leaf) for leaf in leaves)
        canary = self.canary(drawn)
        # The gradient is the same wherever it is taken.
        params = tree.rebuilt([jnp.zeros_like(leaf) for leaf in leaves])
        others = [CanaryRows(canary)] * (loss.arguments - 1)
        total = clipped_grad(params, *others, is_padding_example=canary < 0)
        if not loss.met:
            raise InvalidArgumentError(
                "Expected clipped_grad to be made of the audit's loss: "
                "jax_privacy.clipped_grad(audit.loss(loss), ...)."
            )
        # Losses and norms by example come behind the sum.
        total = total if tree.alike(total) else total[0]
        return tuple(
            more.astype(leaf.dtype)
            for more, leaf in zip(jax.tree.leaves(total), leaves, strict=True)
        )


# Coordinates at which the noise is read by itself.
_WATCHED = 256
# Numbers held at once: contributions of a chunk of canaries, and those that are compared.
_CHUNK_NUMBERS = 1 << 24
_GRAM_NUMBERS = 1 << 25
_CHUNK = 64
# Of a gradient of which less than this share is left, no direction of its own is.
_NOTHING = 1e-4
# Beyond this mean cosine, what gradients have most in common is taken out of the directions, until
# they are as far apart as the second one, or so often.
_ALIKE, _APART, _MOST_TAKEN_OUT = 0.4, 0.25, 12


class Seen(NamedTuple):
    """What is counted while the run trains.

    Attributes:
        planted: How often a canary was in a batch.
        lengths: What those plantings added, in clip norms and along the directions, in all.
        repeats: How often one came twice or more in a batch.
        gram: Sum of the compared canaries' absolute cosines.
        grams: In how many steps they were compared.
        common: What gradients have in common and directions leave out, one row each.
    """

    planted: Any
    lengths: Any
    repeats: Any
    gram: Any
    grams: Any
    common: Any


class ExampleAudit(WrappedRun):
    """Records as canaries: the run's own sampler draws them, its loss and clipping treat them.

    ::

        inputs, labels = canaries.joined(inputs, labels)          # before anything is sampled
        audit = ExampleAudit(params, canaries=canaries, clipped_grad=clipped_grad,
                             sampling=strategy, records=len(inputs), noise_multiplier=s, steps=T)
        privatizer = audit.wrap(privatizer)                       # before privatizer.init(params)
        ...
        noisy, state = privatizer.update(total, state, params, batch=indices)

    Every step also takes the clipped gradient of each canary, present or not, and reads what was
    released along it; what the other records add there is not known. Any direction that is fixed
    before the noise is drawn gives a valid reading: a worse one only lowers the bound. Where
    gradients are much alike, what most of them share is left out of the directions.

    The state takes twelve times the memory of the parameters for that, beside its readings.

    Args:
        params: The parameters, or anything of their structure and shapes.
        canaries: The records, as the loss gets them.
        clipped_grad: The function that gives the run's clipped sum, called with the parameters and
            a batch.
        sampling: How batches are drawn, as declared: a scheme of `askgauss.sampling`, or a batch
            selection strategy of jax_privacy. The draws of the canaries are compared with it.
        records: Number of records that batches are drawn from, the present canaries among them:
            the length of what ``canaries.joined`` gave.
        clip_norm: The most one record adds to the sum; ``clipped_grad.sensitivity()`` if not given.
        noise_multiplier: The noise the run claims, over the clip norm.
        steps: Steps to audit, as for `Audit`.
        arguments: Makes the positional arguments of ``clipped_grad`` after the parameters, from
            inputs and labels of one example; those two themselves if not given.
        buffer: Rows of readings on the device, as for `Audit`.
        seed: Of the coordinates the noise is read at; drawn if not given.

    Raises:
        InvalidArgumentError: An argument is wrong.
        UnsupportedError: The clipped gradient of a canary alone cannot be taken.
    """

    def __init__(
        self,
        params: Any,
        *,
        canaries: ExampleCanaries,
        clipped_grad: Callable[..., Any],
        sampling: Scheme | Any,
        records: int,
        clip_norm: float | None = None,
        noise_multiplier: float | None = None,
        steps: int = 1024,
        arguments: Callable[[Any, Any], tuple[Any, ...]] | None = None,
        buffer: int | None = None,
        seed: int | None = None,
    ) -> None:
        if not isinstance(canaries, ExampleCanaries):
            raise _validate.fail(
                "canaries",
                type(canaries).__name__,
                "to be ExampleCanaries",
                "Use Audit for canaries that are planted in the sum.",
            )
        if not callable(clipped_grad):
            raise _validate.fail(
                "clipped_grad", clipped_grad, "to be what gives the run's clipped sum"
            )
        if clip_norm is None:
            if not hasattr(clipped_grad, "sensitivity"):
                raise _validate.fail(
                    "clip_norm", None, "to be given where clipped_grad does not say it"
                )
            clip_norm = float(clipped_grad.sensitivity())
        self._present = np.flatnonzero(canaries.member)
        _validate.integer(self._present.size + 1, records=records)
        super().__init__(
            params,
            sampling=scheme_of(sampling, int(records)),
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            steps=steps,
            buffer=buffer,
            seed=seed,
        )
        self._canaries: ExampleCanaries = canaries
        self._records = int(records)
        self._clipped_grad = clipped_grad
        self._arguments = arguments or _both
        self._size = sum(int(np.prod(shape)) for shape in self._tree.shapes)
        self._watch = Seam(
            self._tree.stand_ins(),
            lambda sizes: DiracCanaries(
                present=0,
                absent=max(1, min(_WATCHED, sum(sizes) // 2)),
                tensors=sizes,
                seed=seed,
            ),
        )
        places = self._watch.canaries
        self._places = np.concatenate([places.coordinates.ravel(), places.watch])
        self._chunk = int(min(_CHUNK, max(1, _CHUNK_NUMBERS // self._size)))
        self._compared = self._recorder().kept[: max(2, _GRAM_NUMBERS // self._size)]
        self._readings = Readings(
            self._steps,
            canaries.size + self._places.size,
            buffer,
            f"examples {canaries.fingerprint()} {places.fingerprint()}".encode(),
        )
        self._check(params)

    def _check(self, params: Any) -> None:
        """Trace one clipped gradient now: better refused here than in the middle of a run."""
        try:
            jax.eval_shape(self._own, params, 0)
        except InvalidArgumentError:
            raise
        except (TypeError, ValueError) as error:
            raise UnsupportedError(
                "The clipped gradient of a canary alone cannot be taken. Check that clipped_grad "
                "takes the canaries' inputs and labels, or say with arguments= what it takes; made "
                "with microbatch_size, give a twin of it that is made without. "
                f"({type(error).__name__}: {error})"
            ) from error

    # ------------------------------------------------------------------------ inside the step

    def wrap(self, privatizer: Any) -> Any:
        """The transformation with readings after it.

        Args:
            privatizer: What adds the noise, an ``optax.GradientTransformation``.

        Returns:
            A transformation to put in its place. Its ``update`` needs the parameters that the
            clipped sum was taken at, and in ``batch`` the indices of its records; those below zero
            are padding.
        """
        takes_more = checked_privatizer(privatizer)

        def init(params: Any) -> AuditState:
            self._tree.leaves(params)
            count = self._compared.size
            return self._readings.first(
                privatizer.init(params),
                np.zeros((self._steps, self._present.size), dtype=np.bool_),
                Seen(
                    planted=jnp.zeros((), jnp.int32),
                    lengths=jnp.zeros((), jnp.float32),
                    repeats=jnp.zeros((), jnp.int32),
                    gram=jnp.zeros((count, count), jnp.float32),
                    grams=jnp.zeros((), jnp.int32),
                    common=jnp.zeros((_MOST_TAKEN_OUT, self._size), jnp.float32),
                ),
            )

        @named_as_in_jax_privacy
        def update(
            updates: Any, state: Any, params: Any, *, batch: Any = None, **extra: Any
        ) -> tuple[Any, AuditState]:
            state = self._readings.checked(state)
            if params is None or batch is None:
                raise InvalidArgumentError(
                    "Expected params and batch in every update, which say at what parameters the "
                    "sum was taken and of which records: privatizer.update(total, state, params, "
                    f"batch=indices). Got {'no batch' if params is not None else 'no params'}."
                )
            indices = _checked_batch(batch)
            self._tree.leaves(params)
            clean = self._watch.read(self._flat_leaves(updates))
            released, inner = privatizer.update(
                updates, state.inner, params, **(extra if takes_more else {})
            )
            leaves = self._flat_leaves(released)
            read = self._watch.read(leaves) - clean
            noise = jnp.concatenate([self._watch.along(read), self._watch.watched(read)])
            flat = jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])
            state = jax.lax.cond(
                state.step < self._steps,
                lambda: self._read(state, params, indices, flat, noise),
                lambda: state,
            )
            return released, state._replace(inner=inner, step=state.step + 1)

        return optax.GradientTransformationExtraArgs(init, update)

    def _flat_leaves(self, tree: Any) -> tuple[Any, ...]:
        leaves, batch = self._tree.leaves(tree)
        if batch is not None:
            raise UnsupportedError(
                "Expected the clipped sum, got gradients by example. Examples are audited where "
                "clipped_grad gives the sum: use Audit for a transformation that clips by itself."
            )
        return tuple(leaf.astype(jnp.float32) for leaf in leaves)

    def _own(self, params: Any, index: Any) -> Any:
        """What a canary alone adds to the sum, flat."""
        one = self._arguments(
            jnp.asarray(self._canaries.inputs)[index][None],
            jnp.asarray(self._canaries.labels)[index][None],
        )
        total = self._clipped_grad(params, *one)
        if not self._tree.alike(total):
            # Losses and norms by example come behind the sum.
            total = total[0]
        return jnp.concatenate([jnp.ravel(leaf) for leaf in self._flat_leaves(total)])

    def _read(
        self, state: AuditState, params: Any, indices: Any, released: Any, noise: Any
    ) -> AuditState:
        """A step's readings, from parameters of before it."""
        step, seen = state.step, state.seen
        first = self._records - self._present.size
        times = (indices[None, :] == (first + np.arange(self._present.size))[:, None]).sum(axis=1)
        # Directions change slowly: the steps 1, 2, 4, 8, ... are enough.
        seen = jax.lax.cond(
            (step & (step + 1)) == 0, lambda: self._compare(seen, params), lambda: seen
        )
        shared = seen.common @ released

        def along(index: Any) -> tuple[Any, Any]:
            own = self._own(params, index)
            inside = seen.common @ own
            length = jnp.sqrt(own @ own)
            left = jnp.sqrt(jnp.maximum(own @ own - inside @ inside, 0.0))
            # Without a gradient there is no direction, and any that is fixed will do.
            none = left <= _NOTHING * length
            value = (own @ released - inside @ shared) / jnp.where(none, 1.0, left)
            share = jnp.where(none, 0.0, left / jnp.where(none, 1.0, length))
            added = jnp.minimum(length / self._clip_norm, 1.0) * share
            return jnp.where(none, released[0], value), added

        values, added = jax.lax.map(along, jnp.arange(self._canaries.size), batch_size=self._chunk)
        drawn = times > 0
        seen = seen._replace(
            planted=seen.planted + drawn.sum(dtype=jnp.int32),
            lengths=seen.lengths + jnp.where(drawn, added[self._present], 0.0).sum(),
            repeats=seen.repeats + (times > 1).sum(dtype=jnp.int32),
        )
        kept = self._readings.kept(state, jnp.concatenate([values, noise]), state.inner)
        return kept._replace(step=step, planted=state.planted.at[step].set(drawn), seen=seen)

    def _compare(self, seen: Seen, params: Any) -> Seen:
        """How far apart the directions are, and what is to be left out of them from here on."""
        rows = jax.lax.map(
            lambda index: self._own(params, index),
            jnp.asarray(self._compared),
            batch_size=self._chunk,
        )
        lengths = jnp.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows / jnp.where(lengths > 0.0, lengths, 1.0)
        most = min(_MOST_TAKEN_OUT, len(self._compared) - 1)
        values, vectors = jnp.linalg.eigh(rows @ rows.T)
        values, vectors = jnp.maximum(values[::-1][:most], 0.0), vectors[:, ::-1][:, :most]
        parts = vectors * jnp.sqrt(values)

        def cosines(count: Any) -> Any:
            inside = jnp.where(jnp.arange(most) < count, parts, 0.0)
            left = rows @ rows.T - inside @ inside.T
            scale = jnp.sqrt(jnp.maximum(jnp.diagonal(left), _NOTHING**2))
            return jnp.abs(left / scale[:, None] / scale[None, :]).clip(0.0, 1.0)

        size = len(self._compared)
        apart = 1.0 - jnp.eye(size)
        pairs = max(size * (size - 1), 1)
        overlaps = jax.vmap(lambda count: (cosines(count) * apart).sum() / pairs)(
            jnp.arange(most + 1)
        )
        far = overlaps <= _APART
        count = jnp.where(
            overlaps[0] <= _ALIKE, 0, jnp.where(far.any(), jnp.argmax(far), jnp.argmin(overlaps))
        )
        axes = vectors.T @ rows / jnp.sqrt(jnp.where(values > 0.0, values, 1.0))[:, None]
        used = (jnp.arange(most) < count) & (values > 0.0)
        common = jnp.zeros_like(seen.common).at[:most].set(jnp.where(used[:, None], axes, 0.0))
        shown = cosines(count) * apart + jnp.eye(size)
        return seen._replace(gram=seen.gram + shown, grams=seen.grams + 1, common=common)

    # ---------------------------------------------------------------------------- on the host

    def _recorder(self) -> Recorder:
        return Recorder(
            self._canaries,
            sampling=self._sampling,
            clip_norm=self._clip_norm,
            noise_multiplier=self._noise_multiplier,
            records=self._records,
        )

    def transcript(self, state: Any) -> Transcript:
        """What the run has released about the canaries so far.

        Args:
            state: The state the last step returned, or a tree that holds it.

        Raises:
            InvalidArgumentError: It is no such state, or was donated.
            RecordingError: No step was taken, or steps were overwritten.
        """
        own = self._readings.found(state)
        values = self._readings.all(own)
        size, planted = self._canaries.size, np.asarray(own.planted)
        recorder = self._recorder()
        for row, drawn in zip(values, planted, strict=False):
            recorder.observe(row[:size], planted=self._present[drawn])
        recorded = recorder.transcript()
        seen: Seen = own.seen
        count, lengths = int(seen.planted), float(seen.lengths)
        contribution = lengths / count if count else None
        taken = int(own.step)
        tensor = self._watch.canaries.tensor_of(self._places)
        facts = replace(
            self._described(recorded.facts),
            skipped_steps=taken - len(values),
            exercised=INPUT_SPACE,
            contribution=contribution,
            seed_probe=self._seeds_tried(
                values[0, size:], tensor, self._places - self._watch.layout.edges[tensor]
            ),
            notes=tuple(self._notes(contribution, int(seen.repeats))),
        )
        return replace(
            recorded,
            facts=facts,
            gram=np.asarray(seen.gram, dtype=np.float64) / max(int(seen.grams), 1),
            watch_values=values[:, size:] / self._clip_norm,
            watch_tensor=tensor,
        )

    def _notes(self, contribution: float | None, repeats: int) -> list[str]:
        notes = [f"{self._sampling} (declared; verified for the canaries only)."]
        if contribution is not None and contribution < 0.995:
            notes.append(
                f"the canaries' clipped gradients are {contribution:.3g} clip norms long on "
                "average: a record may add 1, so the bound is lower than it could be."
            )
        if repeats:
            notes.append(f"a canary came twice or more in one step, {repeats:,} times.")
        return notes

    @property
    def canaries(self) -> ExampleCanaries:
        """The records that are canaries."""
        return self._canaries


def _both(inputs: Any, labels: Any) -> tuple[Any, ...]:
    return inputs, labels


def _checked_batch(batch: ArrayLike) -> Any:
    indices = jnp.asarray(batch)
    if indices.ndim != 1 or not jnp.issubdtype(indices.dtype, jnp.integer):
        raise InvalidArgumentError(
            f"Expected batch to hold the indices of its records, got shape {indices.shape} and "
            f"dtype {indices.dtype}. Pass what the batch selection strategy gave."
        )
    return indices
