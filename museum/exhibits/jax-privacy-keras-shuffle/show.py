"""Fit a private Keras model with the default of its configuration, and with Poisson sampling."""

from __future__ import annotations

import os

# Keras takes its backend once, when it is imported.
os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from jax_privacy import keras_api
from museum.outcomes import Outcome, main, of_audit

import askgauss as ag
from askgauss.integrations.keras import AuditCallback

RECORDS, BATCH, EPOCHS = 400, 80, 20


def show(variant: str) -> Outcome:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(RECORDS, 60)).astype(np.float32)
    labels = (features[:, :1] > 0).astype(np.float32)
    keras.utils.set_random_seed(0)
    layers = [keras.Input((60,)), keras.layers.Dense(100, "relu"), keras.layers.Dense(1)]
    config = keras_api.DPKerasConfig(
        epsilon=8.0,
        delta=1e-5,
        clipping_norm=1.0,
        batch_size=BATCH,
        gradient_accumulation_steps=1,
        train_steps=EPOCHS * (RECORDS // BATCH),
        train_size=RECORDS,
        seed=987_654_321_987,
        **({"poisson_sampling_in_fit": True} if variant == "mended" else {}),
    )
    model = keras_api.make_private(keras.Sequential(layers), config)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    sizes = [variable.value.size for variable in model.trainable_variables]
    canaries = ag.DiracCanaries(present=250, absent=1000, tensors=sizes, seed=1)
    audit = AuditCallback(canaries=canaries)
    model.fit(features, labels, batch_size=BATCH, epochs=EPOCHS, callbacks=[audit], verbose=0)
    return of_audit(audit.result(), scores=audit.transcript().scores())


main(show)
