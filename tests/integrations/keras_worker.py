"""Trains jax_privacy's Keras models with one callback, in a process with Keras' JAX backend."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile

# Lines of the callback at which fit() is interrupted: of attaching, and of leaving.
PLACES = ("keras.py", "_attachment.py", "_stand_in.py")
LINES = [30, 100, 150, 200]


def main(lines: list[int], *, snapshots: bool = False) -> None:
    """Train correct and broken models and print what their audits say, as JSON.

    Args:
        lines: Where fit() is interrupted.
        snapshots: Whether the whole result of the correct run is printed, and nothing else.
    """
    import keras
    import numpy as np
    from jax_privacy import keras_api, noise_addition

    import askgauss as ag
    from askgauss.exceptions import RecordingError, UnsupportedError
    from askgauss.integrations.keras import AuditCallback

    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, 60)).astype(np.float32)
    labels = (features[:, :1] > 0).astype(np.float32)

    def network():
        keras.utils.set_random_seed(0)
        layers = [keras.Input((60,)), keras.layers.Dense(100, "relu"), keras.layers.Dense(1)]
        return keras.Sequential(layers)

    def private(*, poisson=True, accumulation=1, microbatch=None, average=False):
        config = keras_api.DPKerasConfig(
            epsilon=7.6,
            delta=1e-5,
            clipping_norm=1.0,
            batch_size=80,
            gradient_accumulation_steps=accumulation,
            train_steps=100,
            train_size=400,
            noise_multiplier=1.5,
            poisson_sampling_in_fit=poisson,
            microbatch_size=microbatch,
            seed=987654321987,
        )
        model = keras_api.make_private(network(), config)
        parts = {"gradient_accumulation_steps": accumulation} if accumulation > 1 else {}
        parts |= {"use_ema": True, "ema_momentum": 0.9} if average else {}
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.1, **parts), loss=loss)
        return model

    def fit(model, callbacks, epochs):
        model.fit(features, labels, batch_size=80, epochs=epochs, callbacks=callbacks, verbose=0)

    def callback(model):
        sizes = [variable.value.size for variable in model.trainable_variables]
        canaries = ag.DiracCanaries(present=250, absent=1000, tensors=sizes, seed=1)
        return AuditCallback(canaries=canaries)

    def audited(model, *parts):
        audit = callback(model)
        for epochs, seen in parts:
            fit(model, [audit] if seen else [], epochs)
        return audit.result()

    def said(model, *parts):
        weights = len(model.weights)
        return told(audited(model, *parts), model, weights)

    def given_up(model, epochs, unseen=0):
        """Five epochs are trained and given up: the weights before them are trained again.

        Args:
            model: What trains.
            epochs: How many before those.
            unseen: How many after those without the callback.
        """
        weights = len(model.weights)
        audit = callback(model)
        fit(model, [audit], epochs)
        with tempfile.TemporaryDirectory() as folder:
            model.save_weights(f"{folder}/model.weights.h5")
            fit(model, [audit], 5)
            model.load_weights(f"{folder}/model.weights.h5")
        if unseen:
            np.random.seed(5)  # noqa: NPY002  (batches are drawn from it)
            fit(model, [], unseen)
        fit(model, [audit], 5)
        return told(audit.result(), model, weights)

    def put_back_within(model):
        """Weights of the fifth epoch come back after the tenth, readings and all."""
        weights = len(model.weights)
        audit = callback(model)
        with tempfile.TemporaryDirectory() as folder:
            place = f"{folder}/model.weights.h5"

            class Back(keras.callbacks.Callback):
                def on_epoch_end(self, epoch, logs=None):
                    if epoch == 4:
                        self.model.save_weights(place)
                    if epoch == 9:
                        self.model.load_weights(place)

            fit(model, [audit, Back()], 15)
        fit(model, [audit], 10)
        return told(audit.result(), model, weights)

    def told(result, model, weights):
        return {
            "verdict": result.verdict.value,
            "epsilon": result.epsilon_lower,
            "failed": [item.check for item in result.findings if item.status.value == "fail"],
            "text": str(result),
            "all": " ".join(item.summary for item in result.findings),
            "weights": len(model.weights) - weights,
        }

    def refused(call):
        try:
            call()
        except (RecordingError, UnsupportedError) as error:
            return str(error)
        return ""

    def written(model, write, *, declared=False):
        """Something writes to the weights after every batch."""
        weights = len(model.weights)
        audit = callback(model)

        class Writes(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                with audit.audit.postprocessing() if declared else contextlib.nullcontext():
                    variable = self.model.trainable_variables[0]
                    variable.assign(write(variable))

        fit(model, [Writes(), audit], 20)
        return told(audit.result(), model, weights)

    def traced(frame):
        """Whether this is within the first step, whose interrupt costs Keras its own variables."""
        while frame is not None and frame.f_code.co_name != "_audited":
            frame = frame.f_back
        return frame is not None

    def interrupted(line=None):
        """fit() is interrupted at a line of the callback, or in a step; then the model trains on.

        Returns:
            Where; and what is left in the model after it was trained without the callback.
        """
        model = private()
        weights, before = len(model.weights), dict(vars(model))
        audit, place, count = callback(model), "", 0

        class Stops(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if line is None and batch == 2:
                    raise KeyboardInterrupt

        def trace(frame, event, _):
            nonlocal count, place
            code = frame.f_code
            name = code.co_filename.rpartition("/")[2]
            if name not in PLACES or code.co_name == "_attach" or traced(frame):
                return None
            count += event == "line"
            if event == "line" and count == line:
                place = f"{code.co_name}:{frame.f_lineno}"
                raise KeyboardInterrupt
            return trace

        traces.append(trace)
        with contextlib.suppress(KeyboardInterrupt):
            sys.settrace(trace if line else None)
            fit(model, [audit, Stops()], 1)
        sys.settrace(None)
        fit(model, [], 1)
        left = [
            name
            for name in ("train_step", "make_train_function")
            if vars(model).get(name) is not before.get(name)
        ]
        left += ["privatizer"] * (noise_addition.gaussian_privatizer is not made)
        return [place, left, len(model.weights) - weights]

    traces = []
    made = noise_addition.gaussian_privatizer
    if snapshots:
        print(json.dumps({"keras": audited(private(), (20, True)).to_json()}))
        return
    trained = private()
    plain = network()
    plain.compile(loss="mse")
    outcomes = {
        "correct": said(trained, (10, True), (10, True)),
        "put back": given_up(private(), 15),
        "put back within fit": put_back_within(private()),
        "put back and unseen": given_up(private(), 10, unseen=5),
        "microbatches": said(private(microbatch=20), (20, True)),
        "shuffled": said(private(poisson=False), (20, True)),
        "unseen": said(private(), (15, True), (5, False)),
        "written": written(private(), lambda value: value + features.mean(axis=0)[:, None]),
        "clamped": written(private(), lambda value: keras.ops.clip(value, -1, 1), declared=True),
        "averaged": said(private(average=True), (20, True)),
        "interrupted": [interrupted(), *map(interrupted, lines)],
        "before fit": refused(AuditCallback().result),
        "not private": refused(lambda: fit(plain, [AuditCallback()], 1)),
        "accumulated": refused(lambda: fit(private(accumulation=2), [AuditCallback()], 1)),
    }
    audit = callback(trained)
    audit.set_model(trained)
    outcomes["another model"] = refused(lambda: fit(private(), [audit], 1))
    noise_addition.gaussian_privatizer = lambda stddev: made(stddev=stddev / 2)
    outcomes["half noise"] = said(private(), (20, True))
    print(json.dumps(outcomes))


if __name__ == "__main__":
    asked = sys.argv[1:]
    main(
        [int(item) for item in asked if item.isdigit()] or LINES,
        snapshots="--snapshots" in asked,
    )
