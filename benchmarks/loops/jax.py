"""JAX: correct loops of many kinds, and leaking ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
from jax_privacy import batch_selection

import askgauss as ag
from askgauss.canaries import ExampleCanaries
from askgauss.integrations.jax import Audit, ExampleAudit
from askgauss.results import AuditResult
from askgauss.sampling import CyclicPoisson, EveryStep, Poisson, Shuffled
from benchmarks.loops import CANARY_SEED, Leak, Run, poisson_claim, repeated_claim, unlikely

__all__ = ["CORRECT", "LEAKS"]

RECORDS, FEATURES, HIDDEN, CLASSES = 200, 16, 24, 4
RATE, NOISE, STEPS, MOST = 0.2, 1.0, 24, 96
Tree = Any


def perceptron(chance: np.random.Generator) -> Tree:
    return {
        "first": jnp.asarray(chance.normal(0, 0.2, (FEATURES, HIDDEN)), jnp.float32),
        "second": jnp.asarray(chance.normal(0, 0.2, (HIDDEN, CLASSES)), jnp.float32),
        "bias": jnp.zeros(CLASSES),
    }


def scores(weights: Tree, inputs: Any) -> Any:
    return jnp.tanh(inputs @ weights["first"]) @ weights["second"] + weights["bias"]


def coarse_scores(weights: Tree, inputs: Any) -> Any:
    """In bfloat16, as mixed precision computes it; weights and sums are float32."""
    short = jax.tree.map(lambda item: item.astype(jnp.bfloat16), weights)
    return scores(short, inputs.astype(jnp.bfloat16)).astype(jnp.float32)


def image_weights(chance: np.random.Generator) -> Tree:
    return {
        "kernel": jnp.asarray(chance.normal(0, 0.2, (8, 1, 3, 3)), jnp.float32),
        "second": jnp.asarray(chance.normal(0, 0.2, (128, CLASSES)), jnp.float32),
    }


def image_scores(weights: Tree, inputs: Any) -> Any:
    images = inputs.reshape(-1, 1, 4, 4)
    seen = jax.lax.conv(images, weights["kernel"], (1, 1), "SAME")
    return jax.nn.relu(seen).reshape(len(images), -1) @ weights["second"]


def text_weights(chance: np.random.Generator) -> Tree:
    return {
        "table": jnp.asarray(chance.normal(0, 0.2, (24, HIDDEN)), jnp.float32),
        "second": jnp.asarray(chance.normal(0, 0.2, (HIDDEN, CLASSES)), jnp.float32),
    }


def text_scores(weights: Tree, inputs: Any) -> Any:
    tokens = jnp.clip(4 * inputs + 12, 0, 23).astype(jnp.int32)
    return weights["table"][tokens].mean(axis=1) @ weights["second"]


def sgd() -> optax.GradientTransformation:
    return optax.sgd(0.05)


@dataclass(frozen=True)
class Setting:
    """How one JAX run trains.

    Attributes:
        weights: The parameters at the start.
        scores: The model.
        optimizer: What comes behind the privatizer.
        chained: Whether both are one transformation, made by ``optax.chain``.
        compiled: Whether steps are jitted; with ``"scan"``, the whole run is one scan.
        donated: Whether the state is donated.
        clipped: Whether canaries go through the clipping.
        options: Of clipped_grad.
        audit: Of Audit.
        drained: After how many steps readings are drained; 0 for never.
        restarted: Whether the state goes through the host half way, into a new audit.
        average: Whether an average of the weights is kept beside them.
        dtype: Number format of the weights.
        frozen: The names of parameters that do not train.
        dropout: Whether hidden units are dropped.
        sampling: How batches are drawn.
        steps: How many.
        privatizer: Makes the noise, of a deviation and a key.
    """

    weights: Callable[[np.random.Generator], Tree] = perceptron
    scores: Callable[[Tree, Any], Any] = scores
    optimizer: Callable[[], optax.GradientTransformation] = sgd
    chained: bool = False
    compiled: bool | str = True
    donated: bool = False
    clipped: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    audit: dict[str, Any] = field(default_factory=dict)
    drained: int = 0
    restarted: bool = False
    average: bool = False
    dtype: Any = jnp.float32
    frozen: tuple[str, ...] = ()
    dropout: bool = False
    sampling: str = "poisson"
    steps: int = STEPS
    privatizer: Callable[[float, Any], Any] = field(
        default=lambda deviation, key: jax_privacy.noise_addition.gaussian_privatizer(
            stddev=deviation, prng_key=key
        )
    )


def batches(setting: Setting, chance: np.random.Generator) -> Iterator[np.ndarray]:
    if setting.sampling == "every step":
        for _ in range(setting.steps):
            yield np.arange(RECORDS)
        return
    if setting.sampling == "shuffled":
        each = round(RATE * RECORDS)
        while True:
            order = chance.permutation(RECORDS)
            yield from order.reshape(-1, each)
    cycle = 4 if setting.sampling == "cyclic" else 1
    strategy = batch_selection.CyclicPoissonSampling(
        sampling_prob=RATE * cycle, iterations=setting.steps, cycle_length=cycle
    )
    yield from strategy.batch_iterator(RECORDS, rng=chance)


def scheme_and_claim(setting: Setting) -> tuple[Any, ag.PrivacyClaim]:
    steps = setting.steps
    if setting.sampling == "every step":
        return EveryStep(), repeated_claim(NOISE, steps)
    if setting.sampling == "shuffled":
        each = round(1 / RATE)
        return Shuffled(batches=each), repeated_claim(NOISE, -(-steps // each))
    if setting.sampling == "cyclic":
        return CyclicPoisson(rate=4 * RATE, cycle=4), poisson_claim(NOISE, 4 * RATE, steps // 4)
    return Poisson(rate=RATE), poisson_claim(NOISE, RATE, steps)


def train(setting: Setting, seed: int) -> AuditResult:
    """Train once, audited."""
    chance = np.random.default_rng(unlikely(seed))
    inputs = jnp.asarray(chance.normal(size=(RECORDS, FEATURES)), jnp.float32)
    labels = jnp.arange(RECORDS) % CLASSES
    weights = setting.weights(chance)
    weights = jax.tree.map(lambda item: item.astype(setting.dtype), weights)
    kept = {name: weights[name] for name in setting.frozen}
    weights = {name: item for name, item in weights.items() if name not in kept}
    noise_key = int(unlikely(seed) % 2**31)

    def loss(weights: Tree, inputs: Any, labels: Any, key: Any = None) -> Any:
        found = setting.scores({**weights, **kept}, inputs)
        if key is not None:
            found = jnp.where(jax.random.bernoulli(key, 0.8, found.shape), found / 0.8, 0.0)
        return optax.softmax_cross_entropy_with_integer_labels(found, labels).mean()

    scheme, claim = scheme_and_claim(setting)
    norm = 1.0 if setting.options.get("rescale_to_unit_norm") else 0.5
    norm /= setting.options.get("normalize_by", 1.0)

    def audited() -> tuple[Audit, Any, Any]:
        settings = {
            "sampling": scheme,
            "clip_norm": norm,
            "noise_multiplier": NOISE,
            "steps": setting.steps,
            "canaries": ag.DiracCanaries(
                present=60,
                absent=150,
                tensors=[item.size for item in jax.tree.leaves(weights)],
                seed=CANARY_SEED,
            ),
        }
        audit = Audit(weights, **(settings | setting.audit))
        clipped_grad = jax_privacy.clipped_grad(
            audit.loss(loss) if setting.clipped else loss,
            l2_clip_norm=0.5,
            batch_argnums=(1, 2),
            **({"prng_argnum": 3} if setting.dropout else {}),
            **setting.options,
        )
        privatizer = audit.wrap(
            setting.privatizer(norm * NOISE, noise_key),
            clipped_grad=clipped_grad if setting.clipped else None,
        )
        return audit, clipped_grad, privatizer

    audit, clipped_grad, privatizer = audited()
    optimizer = setting.optimizer()
    if setting.chained:
        optimizer = optax.chain(privatizer, optimizer)

    def step(carried: Any, batch: Any) -> Any:
        weights, noise, state, mean, number = carried
        key = (jax.random.fold_in(jax.random.key(noise_key + 1), number),)
        inputs, labels, missing = batch
        more = key if setting.dropout else ()
        total = clipped_grad(weights, inputs, labels, *more, is_padding_example=missing)
        noisy = total
        if not setting.chained:
            noisy, noise = privatizer.update(total, noise)
        change, state = optimizer.update(noisy, state, weights)
        weights = optax.apply_updates(weights, change)
        mean = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, mean, weights)
        return weights, noise, state, mean, number + 1

    nothing = () if setting.chained else privatizer.init(weights)
    mean = weights if setting.average else {}
    if not setting.average:
        whole = step

        def step(carried: Any, batch: Any) -> Any:  # type: ignore[no-redef]
            weights, noise, state, _, number = carried
            weights, noise, state, _, number = whole(
                (weights, noise, state, weights, number), batch
            )
            return weights, noise, state, {}, number

    carried = (weights, nothing, optimizer.init(weights), mean, jnp.zeros((), jnp.int32))
    drawn = batches(setting, chance)
    most = RECORDS if setting.sampling in ("every step", "cyclic") else MOST
    padded = []
    for _ in range(setting.steps):
        indices = batch_selection.pad_to_multiple_of(np.asarray(next(drawn)), most)
        padded.append((inputs[indices], labels[indices], jnp.asarray(indices < 0)))
    if setting.compiled == "scan":
        run = jax.jit(lambda begin, every: jax.lax.scan(lambda *c: (step(*c), None), begin, every))
        carried, _ = run(carried, jax.tree.map(lambda *items: jnp.stack(items), *padded))
    else:
        one = step
        if setting.compiled:
            one = jax.jit(step, donate_argnums=(0,) if setting.donated else ())
        for number, batch in enumerate(padded):
            if setting.restarted and number == setting.steps // 2:
                carried = jax.tree.map(_through_the_host, carried)
                audit = audited()[0]
            carried = one(carried, batch)
            if setting.drained and (number + 1) % setting.drained == 0:
                audit.drain(carried[1:3])
    return audit.result(carried[1:3], claim=claim)


def _through_the_host(item: Any) -> Any:
    """What a checkpoint does to a state."""
    if jnp.issubdtype(item.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(np.asarray(jax.random.key_data(item)))
    return jnp.asarray(np.asarray(item))


def of(**changes: Any) -> Run:
    return lambda seed: train(Setting(**changes), seed)


# --- other loops ------------------------------------------------------------------------------


def aggregated(seed: int) -> AuditResult:
    """The private aggregation of optax, which is handed gradients by example."""
    chance = np.random.default_rng(unlikely(seed))
    weights = perceptron(chance)
    inputs = jnp.asarray(chance.normal(size=(40, FEATURES)), jnp.float32)
    labels = jnp.arange(40) % CLASSES
    audit = Audit(
        weights,
        sampling=Poisson(rate=RATE),
        clip_norm=0.5,
        noise_multiplier=NOISE,
        steps=STEPS,
        canaries=300,
        seed=CANARY_SEED,
    )
    made = optax.contrib.differentially_private_aggregate(
        0.5, NOISE, key=jax.random.key(int(unlikely(seed) % 2**31))
    )
    privatizer = audit.wrap(made)

    def one(weights: Tree, inputs: Any, label: Any) -> Any:
        found = scores(weights, inputs[None])[0]
        return optax.softmax_cross_entropy_with_integer_labels(found, label)

    @jax.jit
    def step(weights: Tree, state: Any) -> Any:
        rows = jax.vmap(jax.grad(one), (None, 0, 0))(weights, inputs, labels)
        noisy, state = privatizer.update(rows, state)
        return jax.tree.map(lambda old, new: old - 0.1 * new, weights, noisy), state

    state = privatizer.init(weights)
    for _ in range(STEPS):
        weights, state = step(weights, state)
    return audit.result(state, claim=poisson_claim(NOISE, RATE, STEPS))


def as_records(seed: int) -> AuditResult:
    """Canaries are records, drawn by the run's own batch selection."""
    chance = np.random.default_rng(unlikely(seed))
    canaries = ExampleCanaries(
        2 * chance.normal(size=(40, FEATURES)).astype(np.float32),
        chance.integers(CLASSES, size=40),
        present=20,
        absent=20,
        seed=CANARY_SEED,
    )
    plain = chance.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    inputs, labels = canaries.joined(plain, np.arange(RECORDS) % CLASSES)
    inputs, labels = jnp.asarray(inputs), jnp.asarray(labels)
    weights = perceptron(chance)

    def loss(weights: Tree, inputs: Any, labels: Any) -> Any:
        found = scores(weights, inputs)
        return optax.softmax_cross_entropy_with_integer_labels(found, labels).mean()

    clipped_grad = jax_privacy.clipped_grad(loss, l2_clip_norm=1.0, batch_argnums=(1, 2))
    audit = ExampleAudit(
        weights,
        canaries=canaries,
        clipped_grad=clipped_grad,
        sampling=Poisson(rate=RATE),
        records=len(inputs),
        noise_multiplier=NOISE,
        steps=STEPS,
    )
    noise = jax_privacy.noise_addition.gaussian_privatizer(
        stddev=NOISE, prng_key=int(unlikely(seed) % 2**31)
    )
    privatizer = audit.wrap(noise)

    @jax.jit
    def step(weights: Tree, state: Any, batch: Any) -> Any:
        total = clipped_grad(weights, inputs[batch], labels[batch], is_padding_example=batch < 0)
        noisy, state = privatizer.update(total, state, weights, batch=batch)
        return jax.tree.map(lambda old, new: old - 0.002 * new, weights, noisy), state

    strategy = batch_selection.CyclicPoissonSampling(sampling_prob=RATE, iterations=STEPS)
    state = privatizer.init(weights)
    for indices in strategy.batch_iterator(len(inputs), rng=chance):
        weights, state = step(weights, state, batch_selection.pad_to_multiple_of(indices, MOST))
    return audit.result(state, claim=poisson_claim(NOISE, RATE, STEPS))


def by_hand(deviation: float, key: Any) -> optax.GradientTransformation:
    """Noise by a carried key, split for every tensor."""

    def init(_: Tree) -> Any:
        return jax.random.key(key)

    def update(total: Tree, state: Any, params: Any = None) -> Any:
        state, *keys = jax.random.split(state, 1 + len(jax.tree.leaves(total)))
        keys = jax.tree.unflatten(jax.tree.structure(total), keys)
        noisy = jax.tree.map(
            lambda item, own: item + deviation * jax.random.normal(own, item.shape, item.dtype),
            total,
            keys,
        )
        return noisy, state

    return optax.GradientTransformation(init, update)


CORRECT: dict[str, Run] = {
    "SGD": of(),
    "one scan": of(compiled="scan"),
    "not compiled": of(compiled=False, steps=8),
    "state donated": of(donated=True),
    "Adam": of(optimizer=lambda: optax.adam(0.01)),
    "AdamW in a chain": of(optimizer=lambda: optax.adamw(0.01), chained=True),
    "momentum, cosine schedule": of(
        optimizer=lambda: optax.sgd(optax.cosine_decay_schedule(0.1, STEPS), momentum=0.9)
    ),
    "warm-up and clipping behind the noise": of(
        chained=True,
        optimizer=lambda: optax.chain(
            optax.clip_by_global_norm(1.0), optax.sgd(optax.linear_schedule(0.0, 0.1, 8))
        ),
    ),
    "Lion": of(optimizer=lambda: optax.lion(0.001)),
    "RMSprop, one scan": of(optimizer=lambda: optax.rmsprop(0.01), compiled="scan"),
    "canaries through the clipping": of(clipped=True),
    "canaries through the clipping, one scan": of(clipped=True, compiled="scan"),
    "microbatches": of(options={"microbatch_size": 16}),
    "sums for a mean": of(options={"normalize_by": 40.0}),
    "rescaled to unit norm": of(options={"rescale_to_unit_norm": True}),
    "bfloat16 inside the model": of(scores=coarse_scores),
    "frozen layer": of(frozen=("second",)),
    "dropout": of(dropout=True),
    "convolution": of(weights=image_weights, scores=image_scores),
    "embedding": of(weights=text_weights, scores=text_scores),
    "average of the weights": of(average=True),
    "drained in blocks": of(audit={"buffer": 8}, drained=8),
    "watched": of(audit={"monitor": True}, drained=8),
    "restarted half way": of(restarted=True),
    "every record in every step": of(sampling="every step"),
    "shuffled epochs": of(sampling="shuffled", steps=25),
    "cyclic batches": of(sampling="cyclic"),
    "noise by hand": of(privatizer=by_hand),
    "optax's private aggregation": aggregated,
    "records as canaries": as_records,
}


def again(deviation: float, key: Any) -> optax.GradientTransformation:
    """The same key in every step."""

    def update(total: Tree, state: Any, params: Any = None) -> Any:
        return by_hand(deviation, key).update(total, jax.random.key(key))[0], state

    return optax.GradientTransformation(lambda _: (), update)


def half(deviation: float, key: Any) -> Any:
    return by_hand(deviation / 2, key)


def by_step(deviation: float, key: Any) -> optax.GradientTransformation:
    """One key for the step, and the number of the tensor added to that of the step."""

    def update(total: Tree, state: Any, params: Any = None) -> Any:
        leaves, shape = jax.tree.flatten(total)
        noisy = [
            item
            + deviation
            * jax.random.normal(jax.random.fold_in(jax.random.key(key), state + place), item.shape)
            for place, item in enumerate(leaves)
        ]
        return jax.tree.unflatten(shape, noisy), state + 1

    return optax.GradientTransformation(lambda _: jnp.zeros((), jnp.int32), update)


def matrices_only(deviation: float, key: Any) -> optax.GradientTransformation:
    """Noise on matrices, and none on biases."""
    inner = by_hand(deviation, key)

    def update(total: Tree, state: Any, params: Any = None) -> Any:
        noisy, state = inner.update(total, state)
        return jax.tree.map(lambda own, with_noise: with_noise if own.ndim > 1 else own,
                            total, noisy), state  # fmt: skip

    return optax.GradientTransformation(inner.init, update)


def negated(deviation: float, key: Any) -> optax.GradientTransformation:
    """Every second step takes the noise of the one before, with the other sign."""

    def update(total: Tree, state: Any, params: Any = None) -> Any:
        leaves, shape = jax.tree.flatten(total)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(key), state // 2), len(leaves))
        sign = 1.0 - 2.0 * (state % 2)
        noisy = [
            item + sign * deviation * jax.random.normal(own, item.shape)
            for own, item in zip(keys, leaves, strict=True)
        ]
        return jax.tree.unflatten(shape, noisy), state + 1

    return optax.GradientTransformation(lambda _: jnp.zeros((), jnp.int32), update)


LEAKS: dict[str, Leak] = {
    "sum and noise in bfloat16": Leak(of(options={"dtype": jnp.bfloat16}), ("noise precision",)),
    "weights and noise in bfloat16": Leak(of(dtype=jnp.bfloat16), ("noise precision",)),
    "half the noise": Leak(of(privatizer=half), ("noise scale",)),
    "one key for all steps": Leak(
        of(privatizer=again), ("repeated noise", "noise reused at other coordinates")
    ),
    "biases without noise": Leak(
        of(privatizer=matrices_only),
        ("noise by tensor", "noise coverage", "noise scale", "values without noise"),
    ),
    "noise of the last step, negated": Leak(
        of(privatizer=negated), ("repeated noise", "noise reused at other coordinates")
    ),
    "key of step and tensor added": Leak(
        of(privatizer=by_step), ("noise reused at other coordinates",)
    ),
}
