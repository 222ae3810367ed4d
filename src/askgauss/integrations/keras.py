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
out of it when ``fit`` ends: what is saved then is the model alone. It needs Keras' JAX backend.
"""

from __future__ import annotations

import contextlib
import hashlib
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from askgauss.audited_run import AuditedRun
from askgauss.canaries import BlockCanaries, DiracCanaries
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import MissingExtraError, RecordingError, UnsupportedError
from askgauss.sampling import Poisson, Scheme, Shuffled
from askgauss.transcript import Transcript
from askgauss.witness import WeightFacts

try:
    import keras
    import numpy as np
    import optax
    from jax_privacy import keras_api, noise_addition
except ImportError as error:
    raise MissingExtraError(
        "askgauss.integrations.keras needs jax_privacy and Keras on JAX: pip install "
        "'askgauss[keras]', and set KERAS_BACKEND=jax before Keras is imported."
    ) from error

from askgauss.integrations.jax import Audit, AuditState

__all__ = ["AuditCallback"]

_KEPT = ("step", "readings", "planted", "tag")


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
        # The model's own training step, while another stands in its place.
        self._step: Any = None
        # What was read, between two calls of fit().
        self._held: AuditState | None = None
        # At the last look, the model's own counter and the steps that were read; batches since.
        self._counter, self._seen, self._batches = 0, 0, 0
        # Steps without the callback; and steps whose readings were put back with the weights.
        self._unseen, self._forgotten = 0, 0
        # Digests of the variables that train when fit() last ended, by their names.
        self._left: dict[str, str] = {}
        self._changed = WeightFacts(unchecked="an optimizer of Keras is not followed")

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
            self._keep(model)
            self._compare()
            self._look()
            self._step = model.train_step
            model.train_step = types.MethodType(self._audited(self._step), model)
            # A step that was traced before knows nothing of the canaries' variables.
            model.train_function = None

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
            before = self._changed
            self._changed = replace(
                before,
                between=before.between + 1,
                between_first=before.between_first or self._seen + 1,
                between_tensor=before.between_tensor or others[0],
            )

    def _counted(self) -> int:
        """Steps by the model's own counter."""
        taken = keras_api._get_non_trainable_weight("_optimizer_steps", self._attached)
        return int(taken.numpy().item())

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Leave the model as it was but for its training; Keras calls it."""
        self._look()
        self._left = _digests(self._attached)
        self._held = self._state()
        for variable in self._variables.values():
            self.model._untrack_variable(variable)
        self._variables = {}
        self.model.train_step, self._step = self._step, None
        self.model.train_function = None

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
        for name in _KEPT:
            value = getattr(self._held, name)
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

    def _audited(self, train_step: Any) -> Any:
        audit = self._audit
        assert audit is not None

        def step(model: Any, state: Any, data: Any) -> Any:
            own = model.non_trainable_variables
            places = [
                next(index for index, item in enumerate(own) if item is self._variables[name])
                for name in _KEPT
            ]
            held = AuditState(None, *(state[1][place] for place in places))
            with _wrapped_privatizers(audit, held) as after:
                logs, changed = train_step(state, data)
            others = list(changed[1])
            for place, name in zip(places, _KEPT, strict=True):
                others[place] = getattr(after[0], name)
            return logs, (changed[0], others, *changed[2:])

        return step

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
        if self._changed.between:
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
    """What tells the weights that train from others, by their paths."""
    return {
        variable.path: hashlib.sha256(np.asarray(variable.value).tobytes()).hexdigest()
        for variable in model.trainable_variables
    }


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

    noise_addition.gaussian_privatizer = made
    try:
        yield after
    finally:
        noise_addition.gaussian_privatizer = make
    if len(after) != 1:
        raise UnsupportedError(
            f"Expected a training step that adds noise once, got {len(after)} times. This version "
            "of jax_privacy does something else: audit its privatizer with integrations.jax."
        )
