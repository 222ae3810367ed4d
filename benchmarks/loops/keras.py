"""Keras: correct loops of many kinds, and leaking ones. Needs ``KERAS_BACKEND=jax``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from jax_privacy import keras_api, noise_addition

import askgauss as ag
from askgauss.integrations.keras import AuditCallback
from askgauss.results import AuditResult
from benchmarks.loops import CANARY_SEED, DELTA, Leak, Run, declared, poisson_claim, unlikely

__all__ = ["CORRECT", "LEAKS"]

RECORDS, BATCH, FEATURES, EPOCHS, NOISE = 200, 40, 16, 5, 1.5
STEPS = EPOCHS * RECORDS // BATCH
Array = np.ndarray[Any, Any]


def perceptron() -> Any:
    return keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(24, "relu"), keras.layers.Dense(1)]
    )


def dropping() -> Any:
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(24, "relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )


def convolving() -> Any:
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Reshape((4, 4, 1)),
            keras.layers.Conv2D(8, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
            keras.layers.Dense(1),
        ]
    )


def of_texts() -> Any:
    """Tokens, made of the features."""
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Lambda(lambda x: keras.ops.cast(keras.ops.clip(4 * x + 12, 0, 23), int)),
            keras.layers.Embedding(24, 16),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )


def frozen_below() -> Any:
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(24, "relu"),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(1),
        ]
    )
    model.layers[0].trainable = False
    return model


def functional() -> Any:
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.Dense(24, "tanh")(inputs)
    hidden = keras.layers.LayerNormalization()(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def constrained() -> Any:
    """Weights that the optimizer itself projects after every step."""
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(24, "relu", kernel_constraint=keras.constraints.MaxNorm(1.0)),
            keras.layers.Dense(1),
        ]
    )


def regularised() -> Any:
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(24, "relu", kernel_regularizer=keras.regularizers.L2(0.001)),
            keras.layers.Dense(1),
        ]
    )


def coarse() -> Any:
    policy = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    try:
        return keras.Sequential(
            [
                keras.Input((FEATURES,)),
                keras.layers.Dense(24, "relu"),
                keras.layers.Dense(1, dtype="float32"),
            ]
        )
    finally:
        keras.mixed_precision.set_dtype_policy(policy)


def sgd() -> Any:
    return keras.optimizers.SGD(0.1)


@dataclass
class Setting:
    """How one Keras run trains.

    Attributes:
        network: The model.
        optimizer: Its optimizer.
        config: Of DPKerasConfig.
        compiled: Of compile().
        callbacks: Made for the audit's own callback.
        behind: Whether they come after it.
        fits: Epochs of each fit().
        validated: Whether there is held-out data.
        reloaded: Whether weights go through a file between two fits.
    """

    network: Callable[[], Any] = perceptron
    optimizer: Callable[[], Any] = sgd
    config: dict[str, Any] = field(default_factory=dict)
    compiled: dict[str, Any] = field(default_factory=dict)
    callbacks: Callable[[AuditCallback, Array], list[Any]] = field(default=lambda *_: [])
    behind: bool = False
    fits: tuple[int, ...] = (EPOCHS,)
    validated: bool = False
    reloaded: bool = False


def train(setting: Setting, seed: int) -> AuditResult:
    """Train once, audited."""
    chance = np.random.default_rng(unlikely(seed))
    features = chance.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    labels = (features[:, :1] > 0).astype(np.float32)
    held_out = (features[:40] + 0.5, labels[:40])
    keras.utils.set_random_seed(seed)
    settings: dict[str, Any] = {
        "epsilon": poisson_claim(NOISE, BATCH / RECORDS, STEPS).epsilon,
        "delta": DELTA,
        "clipping_norm": 1.0,
        "batch_size": BATCH,
        "gradient_accumulation_steps": 1,
        "train_steps": STEPS,
        "train_size": RECORDS,
        "noise_multiplier": NOISE,
        "poisson_sampling_in_fit": True,
        "seed": unlikely(seed) * 1000,
    }
    config = keras_api.DPKerasConfig(**(settings | setting.config))
    model = keras_api.make_private(setting.network(), config)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer=setting.optimizer(), loss=loss, **setting.compiled)
    sizes = [variable.value.size for variable in model.trainable_variables]
    canaries = ag.DiracCanaries(present=60, absent=150, tensors=sizes, seed=CANARY_SEED)
    audit = AuditCallback(canaries=canaries)
    # What draws batches must not be what anybody may try.
    np.random.seed(unlikely(seed) % 2**32)  # noqa: NPY002
    for number, epochs in enumerate(setting.fits):
        others = setting.callbacks(audit, features)
        if setting.reloaded and number:
            with tempfile.TemporaryDirectory() as folder:
                place = str(Path(folder) / "model.weights.h5")
                model.save_weights(place)
                model.load_weights(place)
        model.fit(
            features,
            labels,
            batch_size=BATCH,
            epochs=epochs,
            callbacks=[audit, *others] if setting.behind else [*others, audit],
            validation_data=held_out if setting.validated else None,
            verbose=0,
        )
    return audit.result()


def of(**changes: Any) -> Run:
    return lambda seed: train(Setting(**changes), seed)


# --- callbacks --------------------------------------------------------------------------------


class Writes(keras.callbacks.Callback):
    """Writes weights after every batch.

    Args:
        audit: What it is declared to; None where it is not.
        write: The new value of a variable.
        every: Whether every variable is written, frozen ones too; or the first that trains.
    """

    def __init__(
        self, audit: AuditCallback | None, write: Callable[[Any], Any], *, every: bool = False
    ) -> None:
        super().__init__()
        self.audit, self.write, self.every = audit, write, every

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        with declared(self.audit):
            layers = self.model.layers
            weights = [
                item for layer in layers for item in layer.weights if "seed" not in item.path
            ]
            for variable in weights if self.every else self.model.trainable_variables[:1]:
                variable.assign(self.write(variable))


def clamped(value: Any) -> Any:
    return keras.ops.clip(value, -0.1, 0.1)


def rounded(value: Any) -> Any:
    return keras.ops.round(100 * value) / 100


def decayed(value: Any) -> Any:
    return 0.99 * value


class Average:
    """An average of the first layer that is written back."""

    def __init__(self) -> None:
        self.mean: Any = None

    def __call__(self, value: Any) -> Any:
        now = np.array(value)
        self.mean = now if self.mean is None else 0.9 * self.mean + 0.1 * now
        return self.mean


class Looks(keras.callbacks.Callback):
    """Predicts the training data after every epoch."""

    def __init__(self, features: Array) -> None:
        super().__init__()
        self.features = features

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model(self.features, training=False)


def fading() -> Any:
    return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, STEPS), momentum=0.9)


CORRECT: dict[str, Run] = {
    "SGD": of(),
    "momentum, cosine schedule": of(optimizer=fading),
    "Adam": of(optimizer=lambda: keras.optimizers.Adam(0.01)),
    "AdamW": of(optimizer=lambda: keras.optimizers.AdamW(0.01, weight_decay=0.01)),
    "RMSprop": of(optimizer=lambda: keras.optimizers.RMSprop(0.01)),
    "clipping and decay of the optimizer": of(
        optimizer=lambda: keras.optimizers.SGD(0.1, clipnorm=1.0, weight_decay=0.01)
    ),
    "average kept by the optimizer": of(
        optimizer=lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)
    ),
    "average written by the optimizer every 5 steps": of(
        optimizer=lambda: keras.optimizers.SGD(
            0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=5
        )
    ),
    "microbatches": of(config={"microbatch_size": 10}),
    "rescaled to unit norm": of(config={"rescale_to_unit_norm": True}),
    "two fits": of(fits=(2, 3)),
    "weights saved and loaded between two fits": of(fits=(2, 3), reloaded=True),
    "validation": of(validated=True),
    "callback that evaluates on the training data": of(
        callbacks=lambda _, features: [Looks(features)]
    ),
    "learning rate by callback": of(
        callbacks=lambda *_: [
            keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (1 + epoch))
        ]
    ),
    "stopped early": of(
        validated=True,
        callbacks=lambda *_: [
            keras.callbacks.EarlyStopping(monitor="val_loss", patience=0, min_delta=10.0)
        ],
    ),
    "average swapped in for validation": of(
        validated=True,
        behind=True,
        optimizer=lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9),
        callbacks=lambda *_: [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
    ),
    "clamped, declared": of(callbacks=lambda audit, _: [Writes(audit, clamped)]),
    "average written, declared": of(callbacks=lambda audit, _: [Writes(audit, Average())]),
    "rounded with a frozen layer, declared": of(
        network=frozen_below, callbacks=lambda audit, _: [Writes(audit, rounded, every=True)]
    ),
    "frozen layer": of(network=frozen_below),
    "dropout": of(network=dropping),
    "convolution": of(network=convolving),
    "embedding": of(network=of_texts),
    "functional, with layer norm": of(network=functional),
    "weights constrained": of(network=constrained),
    "weights regularised": of(network=regularised),
    "mixed bfloat16": of(network=coarse),
    "not compiled": of(compiled={"jit_compile": False}),
}


# --- leaking ----------------------------------------------------------------------------------


def adds_mean(_: AuditCallback, features: Array) -> list[Any]:
    """The mean of the training data, after every batch."""
    return [Writes(None, lambda value: value + features.mean(axis=0)[:, None])]


def half_the_noise(seed: int) -> AuditResult:
    made = noise_addition.gaussian_privatizer
    noise_addition.gaussian_privatizer = lambda stddev, **more: made(stddev=stddev / 2, **more)
    try:
        return train(Setting(), seed)
    finally:
        noise_addition.gaussian_privatizer = made


_WRITTEN = ("weights between steps",)

LEAKS: dict[str, Leak] = {
    "mean of the data added to the weights": Leak(of(callbacks=adds_mean), _WRITTEN),
    "clamped, undeclared": Leak(of(callbacks=lambda *_: [Writes(None, clamped)]), _WRITTEN),
    "decay by hand, undeclared": Leak(of(callbacks=lambda *_: [Writes(None, decayed)]), _WRITTEN),
    "average written, undeclared": Leak(
        of(callbacks=lambda *_: [Writes(None, Average())]), _WRITTEN
    ),
    "half the noise": Leak(half_the_noise, ("noise scale",)),
}
