"""Audit a Keras model that jax_privacy made private, by one callback.

::

    from askgauss.integrations.keras import AuditCallback

    model = jax_privacy.keras_api.make_private(model, config)
    model.compile(...)
    audit = AuditCallback()
    model.fit(x, y, callbacks=[audit], ...)
    print(audit.result())

The callback wraps the privatizer that the model's own training step makes. What it reads is held
in variables of the model while ``fit`` runs, so that everything stays in the jitted step, and taken
out of it when ``fit`` ends, or when the next training begins after one that was interrupted: what
is saved then is the model alone. It needs Keras' JAX backend.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from askgauss.auditing import AuditedRun
from askgauss.canaries import BlockCanaries, DiracCanaries
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import MissingExtraError, RecordingError, UnsupportedError
from askgauss.recording.facts import WeightFacts
from askgauss.recording.transcript import Transcript
from askgauss.sampling import Poisson, Scheme, Shuffled

try:
    import jax
    import jax.numpy as jnp
    import keras
    import numpy as np
    import optax
    from jax_privacy import keras_api, noise_addition
    from numpy.typing import NDArray
except ImportError as error:
    raise MissingExtraError(
        "askgauss.integrations.keras needs jax_privacy and Keras on JAX: pip install "
        "'askgauss[keras]', and set KERAS_BACKEND=jax before Keras is imported."
    ) from error

from askgauss.integrations.attachment import Attachment, PatchedMethod
from askgauss.integrations.jax import Audit, AuditState

__all__ = ["AuditCallback"]

_KEPT = ("step", "readings", "planted", "tag")
# Beside the readings: checksums of the weights as the last step left them, and what came of them.
_SUMS, _BETWEEN = "checksums", "between"


class AuditCallback(keras.callbacks.Callback, AuditedRun[()]):  # type: ignore[misc]
    """Canaries in the training of a model that ``make_private`` has made private.

    Args:
        sampling: How batches are drawn. If not given: Poisson sampling where the configuration
            says that ``fit`` samples so, and otherwise shuffled epochs, as ``fit`` draws by itself.
        canaries: As for `askgauss.integrations.jax.Audit`.
        seed: Root of the audit's random choices; drawn if not given.

    Raises:
        UnsupportedError: The model accumulates gradients over several batches.
    """

    def __init__(
        self,
        *,
        sampling: Scheme | None = None,
        canaries: int | DiracCanaries | BlockCanaries | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self._sampling = sampling
        self._canaries = canaries
        self._seed = seed
        self._audit: Audit | None = None
        self._claim: PrivacyClaim | None = None
        self._attached: Any = None
        self._variables: dict[str, Any] = {}
        self._attachment = Attachment()
        # Whether fit() is about to make its training function.
        self._armed = False
        # What was read, between two calls of fit().
        self._held: AuditState | None = None
        # At the last look, the model's own counter and the steps that were read; batches since.
        self._counter, self._seen, self._batches = 0, 0, 0
        # Steps without the callback; and steps whose readings were put back with the weights.
        self._unseen, self._forgotten = 0, 0
        # Digests of the variables that train when fit() last ended, by their names.
        self._left: dict[str, str] = {}
        self._changed = WeightFacts(
            unchecked="an optimizer of Keras is not followed",
            declare="callback.audit.postprocessing()",
        )

    @property
    def audit(self) -> AuditCallback:
        """The audit, which is the callback itself; callbacks of other trainers have one too."""
        return self

    def set_model(self, model: Any) -> None:
        """Attach to a model before it trains; Keras calls it."""
        super().set_model(model)
        if self._attached is None:
            self._attach(model)
        elif self._attached is not model:
            raise RecordingError(
                "Expected the model this callback was attached to, got another. Make an "
                "AuditCallback for each model."
            )
        if not self._variables:
            try:
                self._put(model)
            except BaseException:
                self._attachment.__exit__(*sys.exc_info())
                raise
        self._armed = True

    def _put(self, model: Any) -> None:
        """Put canaries into the training step; each part registers first what ends it."""
        attachment = self._attachment
        attachment.undo(self._take_out)
        self._keep(model)
        self._compare()
        self._look()
        # A step that was traced before knows nothing of the canaries' variables.
        attachment.undo(functools.partial(setattr, model, "train_function", None))
        attachment.patch(PatchedMethod(model, "train_step", self._audited))
        attachment.patch(PatchedMethod(model, "make_train_function", self._made))
        model.train_function = None

    def _made(self, make: Any, *arguments: Any, **options: Any) -> Any:
        """A training begins: without this callback, it is none of the audit's."""
        if not self._armed:
            self._attachment.close()
        self._armed = False
        return make(*arguments, **options)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Let go where the model is only evaluated; Keras calls it."""
        if self._armed:
            self._armed = False
            self._attachment.close()

    on_predict_begin = on_test_begin

    @contextlib.contextmanager
    def postprocessing(self) -> Iterator[None]:
        """Declare that what changes the weights in here reads released weights and no data.

        Weights that change between two steps make the verdict INVALID, since whatever wrote them
        was not audited. Clamping them, or averaging them, is postprocessing.
        """
        yield
        if self._variables:
            # Reading `model` is what tells Keras that its variables may have changed.
            self.model.trainable_variables  # noqa: B018
            self._variables[_SUMS].assign(_checksums(self._attached.trainable_variables))
        self._left = _digests(self._attached) if self._left else {}
        self._changed = replace(self._changed, declared=self._changed.declared + 1)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """See whether weights were put back since the last epoch; Keras calls it."""
        self._batches = 0
        self._look()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count; Keras calls it after one step or more."""
        self._batches += 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """See whether weights were put back within the epoch; Keras calls it."""
        self._look()

    def _look(self) -> None:
        """Hold the model's counter and the readings against those of the last look.

        A checkpoint that is loaded takes both along, and what was released since stays so.
        """
        counter, seen = self._counted(), int(self._state().step)
        read = seen - self._seen - self._batches
        counted = counter - self._counter - self._batches
        self._forgotten += max(-read, 0)
        # Readings that came with the weights, after a restart, are of steps that were seen.
        self._unseen += max(counted - max(read, 0), 0)
        self._counter, self._seen, self._batches = counter, seen, 0

    def _compare(self) -> None:
        """Whether weights are others since the last fit() though as many steps are counted.

        Steps without the callback that end where weights had been put back from leave the counter
        as it was.
        """
        now = _digests(self._attached)
        others = [name for name, found in self._left.items() if now.get(name) != found]
        if others and self._counted() == self._counter:
            self._note_change(1, self._seen + 1, others[0])

    def _note_change(self, times: int, first: int, tensor: str) -> None:
        before = self._changed
        self._changed = replace(
            before,
            between=before.between + times,
            between_first=before.between_first or first,
            between_tensor=before.between_tensor or tensor,
        )

    def _compare_within(self) -> None:
        """Whether weights changed from one step to the next within fit(), or after its last."""
        model = self._attached
        names = [variable.path for variable in model.trainable_variables]
        times, first, tensor = np.asarray(self._variables[_BETWEEN].value).tolist()
        if times:
            self._note_change(times, first, names[tensor])
        sums = np.asarray(self._variables[_SUMS].value)
        differ = sums != np.asarray(_checksums(model.trainable_variables))
        others = np.flatnonzero(differ & ~_averages(model))
        if others.size and int(self._state().step):
            self._note_change(1, int(self._state().step) + 1, names[int(others[0])])

    def _counted(self) -> int:
        """Steps by the model's own counter."""
        taken = keras_api._get_non_trainable_weight("_optimizer_steps", self._attached)
        return int(taken.numpy().item())

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Leave the model as it was but for its training; Keras calls it."""
        try:
            self._look()
            self._left = _digests(self._attached)
        finally:
            self._attachment.close()

    def _take_out(self) -> None:
        """Take the readings out of the model."""
        names = (*_KEPT, _SUMS, _BETWEEN)
        found = [getattr(self._variables.get(name), "_value", None) for name in names]
        # Not where Keras lost them, in an interrupt within its first step.
        if all(value is not None for value in found):
            self._compare_within()
            self._held = self._state()
        for variable in self._variables.values():
            self._attached._untrack_variable(variable)
        self._variables = {}

    def _attach(self, model: Any) -> None:
        config = getattr(model, "_dp_params", None)
        if config is None:
            raise RecordingError(
                "Expected a private model, got one without noise. Call "
                "jax_privacy.keras_api.make_private(model, config) before fit()."
            )
        if config.gradient_accumulation_steps != 1:
            raise UnsupportedError(
                "Expected gradient_accumulation_steps=1, got "
                f"{config.gradient_accumulation_steps}: noise is then added in parts. Use larger "
                "batches, with microbatch_size."
            )
        if not model.trainable_variables:
            raise RecordingError("Expected a model with variables. Build it before fit().")
        norm = 1.0 if config.rescale_to_unit_norm else float(config.clipping_norm)
        rate = config.batch_size / config.train_size
        drawn = (
            Poisson(rate=rate)
            if config.poisson_sampling_in_fit
            else Shuffled(batches=config.train_size // config.batch_size)
        )
        self._audit = Audit(
            [variable.value for variable in model.trainable_variables],
            sampling=self._sampling or drawn,
            clip_norm=norm / config.batch_size,
            noise_multiplier=float(keras_api.get_noise_multiplier(model)),
            steps=int(config.train_steps),
            records=int(config.train_size),
            canaries=self._canaries,
            seed=self._seed,
        )
        self._claim = PrivacyClaim(
            epsilon=float(config.epsilon),
            delta=float(config.delta),
            noise_multiplier=float(keras_api.get_noise_multiplier(model)),
            steps=int(config.train_steps),
            sampling=Poisson(rate=rate),
        )
        self._attached = model

    def _keep(self, model: Any) -> None:
        """Variables of the model for what the audit reads."""
        assert self._audit is not None
        if self._held is None:
            nothing = optax.identity()
            values = [variable.value for variable in model.trainable_variables]
            self._held = self._audit.wrap(nothing).init(values)
        kept = {name: getattr(self._held, name) for name in _KEPT}
        kept[_SUMS] = _checksums(model.trainable_variables)
        kept[_BETWEEN] = jnp.zeros(3, jnp.int32)
        for name, value in kept.items():
            self._variables[name] = model.add_weight(
                name=f"_askgauss_{name}",
                shape=value.shape,
                dtype=str(value.dtype),
                initializer=keras.initializers.Zeros(),
                trainable=False,
            )
            self._variables[name].assign(value)

    def _state(self) -> AuditState:
        """What has been read so far."""
        if not self._variables:
            if self._held is None:
                raise RecordingError("Expected fit() to have run with this callback, got none.")
            return self._held
        return AuditState(None, *(self._variables[name].value for name in _KEPT))

    def _audited(self, train_step: Any, state: Any, data: Any) -> Any:
        """Stands in for the model's training step while it is traced."""
        assert self._audit is not None
        own = self._attached.non_trainable_variables
        places = {
            name: next(index for index, item in enumerate(own) if item is variable)
            for name, variable in self._variables.items()
        }
        held = AuditState(None, *(state[1][places[name]] for name in _KEPT))
        with _wrapped_privatizers(self._audit, held) as after:
            logs, changed = train_step(state, data)
        # Behind a barrier the sums are those of the very numbers that the next step begins with.
        weights = jax.lax.optimization_barrier(changed[0])  # type: ignore[no-untyped-call]
        before, sums = state[1][places[_SUMS]], _checksums(state[0])
        found = {name: getattr(after[0], name) for name in _KEPT}
        found[_SUMS] = _checksums(weights)
        found[_BETWEEN] = _between(state[1][places[_BETWEEN]], before != sums, after[0].step)
        others = list(changed[1])
        for name, place in places.items():
            others[place] = found[name]
        return logs, (weights, others, *changed[2:])

    def transcript(self) -> Transcript:
        """What the steps so far released about the canaries.

        Raises:
            RecordingError: The callback has met no training.
        """
        state = self._state()
        assert self._audit is not None
        if not self._variables:
            self._look()
        unseen = self._unseen + self._forgotten
        counted, released = self._counted(), int(state.step) + unseen
        recorded = self._audit.transcript(state, unseen_steps=unseen)
        recorded = recorded.with_facts(replace(recorded.facts, weights=self._changed))
        if counted >= released:
            return recorded
        # Weights that are put back take the model's counter along; what was released stays so.
        note = (
            f"{released:,} steps were released where the model's own counter says {counted:,}: it "
            "was put back to an earlier checkpoint, and steps since then are not accounted for."
        )
        facts = recorded.facts
        return recorded.with_facts(
            replace(facts, accounted_steps=counted, notes=(*facts.notes, note))
        )

    def _own_claim(self) -> PrivacyClaim | None:
        return self._claim


def _digests(model: Any) -> dict[str, str]:
    """Digests of the weights that train, by their paths."""
    return {
        variable.path: hashlib.sha256(np.asarray(variable.value).tobytes()).hexdigest()
        for variable in model.trainable_variables
    }


def _averages(model: Any) -> NDArray[np.bool_]:
    """Of which variables the value is the optimizer's own average, which fit() ends with."""
    variables, optimizer = model.trainable_variables, model.optimizer
    kept = getattr(optimizer, "_model_variables_moving_average", ())
    if not getattr(optimizer, "use_ema", False) or len(kept) != len(variables):
        return np.zeros(len(variables), dtype=np.bool_)
    return np.array(
        [
            np.array_equal(np.asarray(mean.value), np.asarray(item.value))
            for mean, item in zip(kept, variables, strict=True)
        ]
    )


def _checksums(tensors: Any) -> Any:
    """A number for each tensor that another one of its values changes."""
    return jnp.stack([_checksum(jnp.asarray(getattr(item, "value", item))) for item in tensors])


def _checksum(values: Any) -> Any:
    bits = jax.lax.bitcast_convert_type(values, f"uint{8 * values.dtype.itemsize}").reshape(-1)
    # Wherever they lie: two values that change places are a change too.
    places = 2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1
    return jnp.sum(bits.astype(jnp.uint32) * places, dtype=jnp.uint32)


def _between(kept: Any, changed: Any, step: Any) -> Any:
    """How often weights had changed since the step before; the first such step and its tensor."""
    any_changed = jnp.any(changed).astype(jnp.int32)
    first = jnp.stack([any_changed, step.astype(jnp.int32), jnp.argmax(changed).astype(jnp.int32)])
    again = kept.at[0].add(any_changed)
    return jnp.where((kept[0] == 0) & jnp.any(changed), first, again)


@contextlib.contextmanager
def _wrapped_privatizers(audit: Audit, held: AuditState) -> Iterator[list[AuditState]]:
    """While a step is traced, the privatizer it makes is audited; yields the state after it."""
    make = noise_addition.gaussian_privatizer
    after: list[AuditState] = []

    def made(*args: Any, **options: Any) -> Any:
        wrapped = audit.wrap(make(*args, **options))

        def update(updates: Any, state: Any, params: Any = None) -> Any:
            released, changed = wrapped.update(updates, held._replace(inner=state), params)
            after.append(changed)
            return released, changed.inner

        return types.SimpleNamespace(init=wrapped.init, update=update)

    with Attachment() as attachment:
        attachment.undo(functools.partial(setattr, noise_addition, "gaussian_privatizer", make))
        noise_addition.gaussian_privatizer = made
        yield after
    if len(after) != 1:
        raise UnsupportedError(
            f"Expected a training step that adds noise once, got {len(after)} times. This version "
            "of jax_privacy does something else: audit its privatizer with integrations.jax."
        )
