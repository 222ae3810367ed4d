"""Opacus: loops that leak, each in one way, and correct loops of the same kind."""

from __future__ import annotations

import contextlib
import io
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from tests.integrations.reused_noise import FAULTS, LARGE_FAULTS, reuse_noise
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, default_collate

import askgauss as ag
from askgauss.checks import noise_reuse
from askgauss.integrations.opacus import CanaryAudit, Observation
from askgauss.results import AuditResult
from benchmarks.loops import DELTA, Leak, Run, unlikely

__all__ = ["CORRECT", "LEAKS", "Training", "loss_of", "of", "perceptron", "plain", "step"]

RECORDS, FEATURES, HIDDEN, CLASSES, BATCH, EPOCHS = 256, 10, 16, 4, 32, 3

# For time: as many orders of the accountant as matter here, and of the seeds that an audit tries
# on the noise the first fifty and the customary ones.
RDPAccountant.DEFAULT_ALPHAS = list(range(2, 64))
noise_reuse._PLAIN = 50


@dataclass
class Training:
    """A model made private, its data, and its audit while it trains."""

    model: Any
    optimizer: Any
    criterion: Any
    loader: Any
    plain_loader: DataLoader[Any]
    engine: PrivacyEngine
    data: TensorDataset
    audit: CanaryAudit | None = None

    @property
    def features(self) -> Tensor:
        """What the model is given of every record."""
        return self.data.tensors[0]

    @property
    def labels(self) -> Tensor:
        """What it is to say of them."""
        return self.data.tensors[1]


Loop = Callable[[Training], None]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES))


def rows() -> TensorDataset:
    return TensorDataset(torch.randn(RECORDS, FEATURES), torch.randint(0, CLASSES, (RECORDS,)))


def images() -> TensorDataset:
    return TensorDataset(torch.rand(RECORDS, 1, 8, 8), torch.arange(RECORDS) % CLASSES)


def loss_of(run: Training, features: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(run.model(features), target, reduction="none")


def step(run: Training, features: Tensor, target: Tensor) -> None:
    run.optimizer.zero_grad()
    run.criterion(run.model(features), target).backward()
    run.optimizer.step()


def plain(run: Training) -> None:
    for features, target in run.loader:
        step(run, features, target)


def of(
    loop: Loop = plain,
    *,
    change: Loop | None = None,
    network: Callable[[], nn.Module] = perceptron,
    data: Callable[[], TensorDataset] = rows,
    epochs: int = EPOCHS,
    batch: int = BATCH,
    noise: float = 1.0,
    clip_norm: Any = 1.0,
    exact_share: float = 0.25,
    claimed: dict[str, Any] | None = None,
    factor: float = 1.001,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    audit_options: dict[str, Any] | None = None,
    **options: Any,
) -> Run:
    """A run from a seed: make private, attach the audit, loop over epochs, judge.

    Args:
        loop: One pass over the data.
        change: What is changed before the audit is attached.
        network: The model.
        data: The records.
        epochs: How often the loop runs.
        batch: Expected batch size.
        noise: The noise multiplier.
        clip_norm: The clip norm.
        exact_share: Share of the steps that the exact checks look at.
        claimed: Further arguments of the claim.
        factor: The claimed epsilon, in that of the accountant.
        optimizer: Of the parameters that train.
        audit_options: Of the audit.
        options: Of ``make_private``.
    """

    def run(seed: int) -> AuditResult:
        torch.manual_seed(unlikely(seed))
        records, model = data(), network()
        loader: DataLoader[Any] = DataLoader(records, batch_size=batch, shuffle=True)
        trained = [item for item in model.parameters() if item.requires_grad]
        engine = PrivacyEngine(accountant="rdp")
        made = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(trained, lr=0.1, momentum=0.5)
            if optimizer is None
            else optimizer(trained),
            data_loader=loader,
            criterion=nn.CrossEntropyLoss(reduction=options.get("loss_reduction", "mean")),
            noise_multiplier=noise,
            max_grad_norm=clip_norm,
            **options,
        )
        criterion = (
            made[2]
            if len(made) == 4
            else nn.CrossEntropyLoss(reduction=options.get("loss_reduction", "mean"))
        )
        training = Training(made[0], made[1], criterion, made[-1], loader, engine, records)
        if change is not None:
            change(training)
        audit = CanaryAudit(
            training.optimizer,
            data_loader=training.loader,
            model=training.model,
            seed=seed,
            observation=Observation(exact_share=exact_share),
            **(audit_options or {}),
        )
        training.audit = audit
        with contextlib.redirect_stderr(io.StringIO()), audit:
            for _ in range(epochs):
                loop(training)
        epsilon = ag.accounting.dpsgd_epsilon(
            noise_multiplier=noise,
            sampling_rate=batch / RECORDS,
            steps=max(1, audit.steps),
            delta=DELTA,
        )
        claim = ag.PrivacyClaim(epsilon=factor * epsilon, delta=DELTA, **(claimed or {}))
        return audit.result(claim=claim)

    return run


# --- rows that the loader did not draw ------------------------------------------------------------


def views(count: int) -> Loop:
    def loop(run: Training) -> None:
        for features, target in run.loader:
            seen = [features + 0.1 * torch.randn_like(features) for _ in range(count)]
            step(run, torch.cat(seen), target.repeat(count))

    return loop


def doubles(run: Training) -> None:
    run.loader.collate_fn.wrapped_collator_fn = lambda records: [
        torch.cat([item, item]) for item in default_collate(records)
    ]


def anchors(count: int) -> Loop:
    def loop(run: Training) -> None:
        for features, target in run.loader:
            step(
                run,
                torch.cat([features, run.features[:count]]),
                torch.cat([target, run.labels[:count]]),
            )

    return loop


def harder(run: Training, features: Tensor, target: Tensor) -> Tensor:
    with torch.no_grad():
        return loss_of(run, features, target).argsort()[len(target) // 2 :]


def half(run: Training) -> None:
    for features, target in run.loader:
        hard = harder(run, features, target)
        step(run, features[hard], target[hard])


def hard_again(run: Training) -> None:
    for features, target in run.loader:
        step(run, features, target)
        hard = harder(run, features, target)
        step(run, features[hard], target[hard])


def hard_twice(run: Training) -> None:
    for features, target in run.loader:
        hard = harder(run, features, target)
        hard = torch.cat([hard, hard])[: len(target)]
        step(run, features[hard], target[hard])


def sent_twice(run: Training) -> None:
    for features, target in run.loader:
        for last in (False, True):
            run.optimizer.signal_skip_step(not last)
            step(run, features, target)


def overlapping(run: Training) -> None:
    """Parts of 20 records that share 4 with the next."""
    for features, target in run.loader:
        starts = range(0, max(1, len(target) - 4), 16)
        for number, start in enumerate(starts, 1):
            run.optimizer.signal_skip_step(number < len(starts))
            step(run, features[start : start + 20], target[start : start + 20])


def repeated_when_large(run: Training) -> None:
    for features, target in run.loader:
        step(run, features, target)
        if len(target) > BATCH:
            step(run, features, target)


def dropped(wanted: Callable[[Training, Tensor, Tensor], bool]) -> Loop:
    def loop(run: Training) -> None:
        for features, target in run.loader:
            if wanted(run, features, target):
                step(run, features, target)

    return loop


def by_loss(run: Training, features: Tensor, target: Tensor) -> bool:
    with torch.no_grad():
        return float(loss_of(run, features, target).mean()) < 1.45


def by_nan(run: Training) -> None:
    """A record whose loss is not a number: its batches are left out."""
    run.features[0] = float("nan")
    for features, target in run.loader:
        run.optimizer.zero_grad()
        loss = run.criterion(run.model(features), target)
        if not torch.isfinite(loss):
            continue
        loss.backward()
        run.optimizer.step()


def zipped(run: Training) -> None:
    for _, (features, target) in zip(run.loader, run.plain_loader, strict=False):
        step(run, features, target)


def before_private(run: Training) -> None:
    for features, target in run.plain_loader:
        step(run, features, target)


def slices(run: Training) -> None:
    order = torch.randperm(RECORDS)
    for part in order.split(BATCH):
        step(run, run.features[part], run.labels[part])


# --- samplers ---------------------------------------------------------------------------------


class Sampler:
    """Batches of a Poisson sampler, changed.

    Args:
        inner: The sampler.
        changed: Makes another batch of one.
    """

    def __init__(self, inner: Any, changed: Callable[[list[int]], Iterable[int]]) -> None:
        self.inner, self.changed, self.sample_rate = inner, changed, inner.sample_rate

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.inner:
            yield sorted(self.changed(list(batch)))

    def __len__(self) -> int:
        return len(self.inner)


def sampled(changed: Callable[[list[int]], Iterable[int]]) -> Loop:
    def change(run: Training) -> None:
        run.loader = DataLoader(
            run.data,
            batch_sampler=Sampler(run.loader.batch_sampler, changed),  # type: ignore[arg-type]
            collate_fn=run.loader.collate_fn,
        )

    return change


def together(batch: list[int]) -> set[int]:
    """Records 0 and 1 are drawn as one."""
    return {*batch} - {1} | ({1} if 0 in batch else set())


def own_loader(**options: Any) -> Loop:
    def change(run: Training) -> None:
        run.loader = DataLoader(run.data, batch_size=BATCH, **options)

    return change


def reseeded(run: Training) -> None:
    """The sampler's generator is seeded anew at the start of every epoch."""
    run.loader.batch_sampler.generator = torch.Generator().manual_seed(1_860_867)
    plain(run)


# --- settings ---------------------------------------------------------------------------------


def set_before(setting: Callable[[Any, Tensor, int], None]) -> Loop:
    """A loop that sets something between the backward pass and the step."""

    def loop(run: Training) -> None:
        for features, target in run.loader:
            run.optimizer.zero_grad()
            loss = run.criterion(run.model(features), target)
            loss.backward()
            setting(run.optimizer, loss.detach(), len(target))
            run.optimizer.step()

    return loop


def norms(optimizer: Any) -> Tensor:
    return torch.stack([g.flatten(1).norm(dim=1) for g in optimizer.grad_samples]).norm(dim=0)


def set_rate(optimizer: Any, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def median_norm(optimizer: Any, loss: Tensor, size: int) -> None:
    optimizer.max_grad_norm = float(norms(optimizer).median())


def rate_by_loss(optimizer: Any, loss: Tensor, size: int) -> None:
    set_rate(optimizer, 0.1 * float(loss))


def rate_by_size(optimizer: Any, loss: Tensor, size: int) -> None:
    set_rate(optimizer, 0.1 * size / BATCH)


def noise_by_loss(optimizer: Any, loss: Tensor, size: int) -> None:
    optimizer.noise_multiplier = 1.0 + 0.1 * round(float(loss), 1)


def divisor(optimizer: Any, loss: Tensor, size: int) -> None:
    optimizer.expected_batch_size = max(size, 1)


# --- steps ------------------------------------------------------------------------------------


def replaced(**methods: Callable[..., None]) -> Loop:
    """A change that gives the optimizer methods of its own."""

    def change(run: Training) -> None:
        for name, method in methods.items():
            setattr(run.optimizer, name, types.MethodType(method, run.optimizer))

    return change


def clipped_at(times: float) -> Callable[[Any], None]:
    def clip(self: Any) -> None:
        norm, self.max_grad_norm = self.max_grad_norm, times * self.max_grad_norm
        try:
            DPOptimizer.clip_and_accumulate(self)
        finally:
            self.max_grad_norm = norm

    return clip


def accumulate(optimizer: Any, factors: Callable[[Any, Tensor], Tensor]) -> None:
    """Sum per-sample gradients, each tensor scaled by factors of its own."""
    for item in optimizer.params:
        total = torch.einsum("i,i...", factors(item, norms(optimizer)), item.grad_sample)
        item.summed_grad = total if item.summed_grad is None else item.summed_grad + total


def last_unclipped(self: Any) -> None:
    last = {id(item) for item in self.params[-2:]}
    square = sum(item.grad_sample.flatten(1).norm(dim=1) ** 2 for item in self.params[:-2])
    factor = (self.max_grad_norm / (square**0.5 + 1e-6)).clamp(max=1.0)
    accumulate(self, lambda item, _: torch.ones_like(factor) if id(item) in last else factor)


def by_layer(self: Any) -> None:
    accumulate(
        self,
        lambda item, _: (
            self.max_grad_norm / (item.grad_sample.flatten(1).norm(dim=1) + 1e-6)
        ).clamp(max=1.0),
    )


def to_unit_norm(self: Any) -> None:
    """Rescaled to norm 1, where the noise is that of a clip norm of 0.1."""
    accumulate(self, lambda _, lengths: 1.0 / (lengths + 1e-6))


def one_value(self: Any) -> None:
    for item in self.params:
        noise = torch.normal(0.0, self.noise_multiplier * self.max_grad_norm, (1,))
        item.grad = (item.summed_grad + noise.expand_as(item.summed_grad)).view_as(item)


def noise_of(deviation: Callable[[Any], float]) -> Callable[[Any], None]:
    def add_noise(self: Any) -> None:
        for item in self.params:
            noise = torch.normal(0.0, deviation(self), item.summed_grad.shape)
            item.grad = (item.summed_grad + noise).view_as(item)

    return add_noise


def every_fourth(self: Any) -> None:
    self.count = getattr(self, "count", -1) + 1
    (noise_of(lambda it: it.noise_multiplier * it.max_grad_norm if it.count % 4 == 0 else 0.0))(
        self
    )


def coarse(self: Any) -> None:
    for item in self.params:
        deviation = self.noise_multiplier * self.max_grad_norm
        noise = torch.normal(0.0, deviation, item.summed_grad.shape).to(torch.bfloat16)
        item.grad = (item.summed_grad + noise).view_as(item)


def generator_42(run: Training) -> None:
    run.optimizer.generator = torch.Generator().manual_seed(42)


def seeded_by_epoch(run: Training) -> None:
    run.optimizer.generator = torch.Generator().manual_seed(1_860_867)
    plain(run)


def divided_by_size(self: Any) -> None:
    for item in self.params:
        item.grad /= max(1, len(item.grad_sample))


def reused(name: str) -> Loop:
    def change(run: Training) -> None:
        reuse_noise(run.optimizer, {**FAULTS, **LARGE_FAULTS}[name]())

    return change


def three_layers(hidden: int) -> Callable[[], nn.Module]:
    def network() -> nn.Module:
        return nn.Sequential(
            nn.Linear(FEATURES, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, CLASSES),
        )

    return network


def best_restored(run: Training) -> None:
    """The best weights are put back after an epoch that made the private loss little smaller."""
    plain(run)
    with torch.no_grad():
        loss = float(loss_of(run, run.features, run.labels).mean())
    kept: dict[str, Any] = vars(run).setdefault("kept", {"loss": float("inf")})
    if loss < 0.97 * kept["loss"]:
        state = {name: item.clone() for name, item in run.model.state_dict().items()}
        kept.update(loss=loss, state=state)
    else:
        run.model.load_state_dict(kept["state"])


def writes_mean(run: Training) -> None:
    plain(run)
    with torch.no_grad():
        next(run.model.parameters()).add_(run.features.mean(0))


# --- records that meet before they are clipped ------------------------------------------------

Inputs = Callable[[Tensor, Tensor], Tensor]
Loss = Callable[[Training, Tensor, Tensor], Tensor]


def mixed(
    inputs: Inputs | None = None, loss: Loss | None = None, network: Any = perceptron, **more: Any
) -> Run:
    """A run whose inputs or loss are made in another way."""

    def loop(run: Training) -> None:
        for features, target in run.loader:
            run.optimizer.zero_grad()
            output = run.model(features if inputs is None else inputs(features, target))
            lost = run.criterion(output, target) if loss is None else loss(run, output, target)
            lost.backward()
            run.optimizer.step()

    return of(loop, network=network, **{"epochs": 1, **more})


def mixup(features: Tensor, _: Tensor) -> Tensor:
    share = float(torch.rand(())) * 0.8 + 0.1
    return share * features + (1.0 - share) * features[torch.randperm(len(features))]


def mixup_by_row(features: Tensor, _: Tensor) -> Tensor:
    share = torch.distributions.Beta(0.4, 0.4).sample((len(features), 1))
    return share * features + (1.0 - share) * features.flip(0)


def mixup_in_place(features: Tensor, _: Tensor) -> Tensor:
    return features.mul_(0.7).add_(features[torch.randperm(len(features))], alpha=0.3)


def cutmix(features: Tensor, _: Tensor) -> Tensor:
    pasted = features.clone()
    pasted[:, :, 2:7, 1:6] = features[torch.randperm(len(features))][:, :, 2:7, 1:6]
    return pasted


def mixes_when_collating(run: Training) -> None:
    def collate(records: Any) -> list[Tensor]:
        features, target = default_collate(records)
        return [mixup(features, target), target]

    run.loader.collate_fn.wrapped_collator_fn = collate


def batch_weights(formula: Callable[[Tensor], Tensor]) -> Loss:
    def loss(run: Training, output: Tensor, target: Tensor) -> Tensor:
        counts = torch.bincount(target, minlength=CLASSES).clamp(min=1)
        return functional.cross_entropy(output, target, weight=formula(counts.float()))

    return loss


def centred_loss(run: Training, output: Tensor, target: Tensor) -> Tensor:
    lost: Tensor = run.criterion(output - output.mean(0), target)
    return lost


def contrastive(run: Training, output: Tensor, target: Tensor) -> Tensor:
    similar = functional.normalize(output, dim=1)
    return functional.cross_entropy(similar @ similar.T / 0.5, torch.arange(len(target)))


class Normalised(nn.Module):
    """Batch normalisation by a function, which Opacus does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.first(features)
        if len(hidden) > 1:
            hidden = functional.batch_norm(hidden, None, None, training=True)
        scores: Tensor = self.last(hidden.tanh())
        return scores


class Centred(nn.Module):
    """Subtracts a running mean of the batches before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.centre = torch.zeros(8)

    def forward(self, features: Tensor) -> Tensor:
        hidden, centre = self.first(features), self.centre
        if len(hidden):
            self.centre = 0.9 * centre + 0.1 * hidden.detach().mean(0)
        scores: Tensor = self.last((hidden - centre).tanh())
        return scores


class Experts(nn.Module):
    """Keeps a loss that balances its experts over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(FEATURES, 3)
        self.experts = nn.ModuleList(nn.Linear(FEATURES, CLASSES) for _ in range(3))

    def forward(self, features: Tensor) -> Tensor:
        gates = self.gate(features).softmax(1)
        share = functional.one_hot(gates.argmax(1), 3).float()
        self.balance = (share.mean(0) * gates.mean(0)).sum()
        scores: Tensor = sum(
            (gates[:, [n]] * expert(features) for n, expert in enumerate(self.experts)),
            torch.zeros(()),
        )
        return scores


def balanced(run: Training, output: Tensor, target: Tensor) -> Tensor:
    lost: Tensor = run.criterion(output, target) + 0.1 * run.model._module.balance
    return lost


# --- the tables -------------------------------------------------------------------------------

_ROWS = ("rows per record",)
_LOADER = ("training loader",)
_UNUSED = ("unused batches",)
_MIXED = ("mixed records",)
_REUSED = ("noise reused at other coordinates", "repeated noise", "shared noise")
_SAMPLER = ("sampling scheme", "accounted sampling", "sampling in time", "single records")


def leaks(checks: Sequence[str], **runs: Run) -> dict[str, Leak]:
    return {name.replace("_", " "): Leak(run, checks) for name, run in runs.items()}


LEAKS: dict[str, dict[str, Leak]] = {
    "Trained rows": {
        **{
            f"{count} augmented rows a record, {mode}": Leak(
                of(views(count), grad_sample_mode=mode), _ROWS
            )
            for count in (2, 4, 8)
            for mode in ("hooks", "ghost")
        },
        "a collate function that doubles records": Leak(of(change=doubles), _ROWS),
        "batch sent twice": Leak(of(sent_twice), _ROWS),
        "parts of a batch that overlap": Leak(of(overlapping), _ROWS),
        "harder half of a batch": Leak(of(half), _ROWS),
        "harder half twice, the rest not": Leak(of(hard_twice), _ROWS),
        "harder half trained on again": Leak(of(hard_again), ("repeated batches",)),
        "large batches trained on again": Leak(of(repeated_when_large), ("repeated batches",)),
        **{
            f"{count} anchor records in every step": Leak(of(anchors(count)), _ROWS)
            for count in (1, 10, 100, 200)
        },
        "another loader zipped in": Leak(of(zipped), _LOADER),
        "the loader from before make_private": Leak(of(before_private), _LOADER),
        "slices of a permutation": Leak(of(slices), _LOADER),
        "batches left out by their loss": Leak(of(dropped(by_loss)), _UNUSED),
        "batches left out by their size": Leak(
            of(dropped(lambda run, features, target: len(target) >= BATCH - 3)), _UNUSED
        ),
        "5 % of the batches left out": Leak(
            of(dropped(lambda run, *_: float(torch.rand(())) > 0.05), epochs=12), _UNUSED
        ),
        "empty batches left out": Leak(
            of(dropped(lambda run, features, target: len(target) > 0), batch=1, epochs=1),
            _UNUSED,
        ),
        "batches with a loss that is not a number left out": Leak(of(by_nan), _UNUSED),
    },
    "Sampler": {
        "one record in every batch": Leak(
            of(change=sampled(lambda batch: {*batch, 0}), epochs=6), ("single records",)
        ),
        "three records in every batch": Leak(
            of(change=sampled(lambda batch: {*batch, 0, 1, 2}), epochs=6), ("single records",)
        ),
        "two records always together": Leak(
            of(change=sampled(together), epochs=12), ("single records",)
        ),
        "one record never drawn": Leak(
            of(change=sampled(lambda batch: {*batch} - {0}), epochs=20), ("single records",)
        ),
        "poisson_sampling=False": Leak(of(poisson_sampling=False), _SAMPLER),
        "own shuffled loader": Leak(of(change=own_loader(shuffle=True)), _SAMPLER),
        "own loader, not shuffled": Leak(of(change=own_loader()), _SAMPLER),
        "sampler seeded anew in every epoch": Leak(of(reseeded), _SAMPLER),
        "twice the accounted sampling rate": Leak(
            of(claimed={"sampling_rate": 0.5 * BATCH / RECORDS}, factor=0.5),
            ("sampling rate", "accounted epsilon"),
        ),
    },
    "Noise used again": {
        **{
            name: Leak(of(change=reused(name), network=three_layers(16), epochs=3), _REUSED)
            for name in FAULTS
        },
        **{
            name: Leak(of(change=reused(name), network=three_layers(128), epochs=3), _REUSED)
            for name in LARGE_FAULTS
        },
        "generator seeded anew in every epoch": Leak(of(seeded_by_epoch), _REUSED),
        "generator seeded with 42": Leak(of(change=generator_42), ("predictable noise",)),
    },
    "Claim": {
        "add-remove epsilon claimed of replaced records": Leak(
            of(claimed={"adjacency": "replace"}), ("accounted epsilon",)
        ),
    },
    "Settings taken from the batch": {
        "expected_batch_size = len(batch)": Leak(of(set_before(divisor)), ("divisor",)),
        "clip norm = the batch's median norm": Leak(
            of(set_before(median_norm)), ("clip norm schedule",)
        ),
        "learning rate by the loss": Leak(
            of(set_before(rate_by_loss)), ("learning rate schedule",)
        ),
        "learning rate by the size of the batch": Leak(
            of(set_before(rate_by_size)), ("learning rate schedule",)
        ),
        "noise multiplier by the loss": Leak(
            of(set_before(noise_by_loss)), ("noise multiplier schedule",)
        ),
        "own scale_grad divides by the size of the batch": Leak(
            of(change=replaced(scale_grad=divided_by_size)),
            ("divisor", "noise by step"),
        ),
    },
    "Records that meet before clipping": {
        name: Leak(run, _MIXED)
        for name, run in {
            "mixup": mixed(mixup),
            "mixup, a share for each record": mixed(mixup_by_row),
            "mixup in place": mixed(mixup_in_place),
            "mixup by the collate function": of(change=mixes_when_collating, epochs=1),
            "mixup, ghost": mixed(mixup, grad_sample_mode="ghost"),
            "cutmix": mixed(cutmix, network=convolution, data=images),
            "class weights of the batch": mixed(loss=batch_weights(lambda n: 1.0 / n)),
            "class weights of the batch, balanced": mixed(
                loss=batch_weights(lambda n: n.sum() / (CLASSES * n))
            ),
            "class weights of the batch, by roots": mixed(
                loss=batch_weights(lambda n: 1.0 / n.sqrt())
            ),
            "centred loss": mixed(loss=centred_loss),
            "contrastive loss": mixed(loss=contrastive),
            "balance loss of experts": mixed(loss=balanced, network=Experts),
            "batch norm by a function": mixed(network=Normalised),
            "batch norm by a function, ghost": mixed(network=Normalised, grad_sample_mode="ghost"),
            "running mean taken off": mixed(network=Centred),
        }.items()
    },
    "Steps": {
        "clipped at four clip norms": Leak(
            of(change=replaced(clip_and_accumulate=clipped_at(4.0)), clip_norm=0.1),
            ("record contributions", "contribution", "even contribution"),
        ),
        "clipped at two clip norms": Leak(
            of(change=replaced(clip_and_accumulate=clipped_at(2.0)), clip_norm=0.1),
            ("record contributions", "contribution", "even contribution"),
        ),
        "last layer unclipped": Leak(
            of(change=replaced(clip_and_accumulate=last_unclipped), clip_norm=0.1),
            ("sum of records", "record contributions"),
        ),
        "every layer clipped at the whole clip norm": Leak(
            of(change=replaced(clip_and_accumulate=by_layer), clip_norm=0.1),
            ("sum of records", "record contributions", "contribution"),
        ),
        "rescaled to norm 1, noise for 0.1": Leak(
            of(change=replaced(clip_and_accumulate=to_unit_norm), clip_norm=0.1),
            ("record contributions", "contribution", "sum of records"),
        ),
        "one noise value for a whole tensor": Leak(
            of(change=replaced(add_noise=one_value)), ("shared noise",)
        ),
        "noise without the clip norm": Leak(
            of(change=replaced(add_noise=noise_of(lambda it: 0.1)), clip_norm=1.0),
            ("noise scale",),
        ),
        "noise for a mean": Leak(
            of(change=replaced(add_noise=noise_of(lambda it: 1.0 / BATCH))), ("noise scale",)
        ),
        "noise in every fourth step": Leak(
            of(change=replaced(add_noise=every_fourth)), ("steps without noise",)
        ),
        "noise in bfloat16": Leak(of(change=replaced(add_noise=coarse)), ("noise precision",)),
        "best weights put back": Leak(of(best_restored), ("weights between steps",)),
        "mean of the data added to the weights": Leak(of(writes_mean), ("weights between steps",)),
    },
}


# --- correct loops that look like these -----------------------------------------------------------


def averaged(run: Training) -> None:
    """Four views of a record, averaged before they are clipped."""
    for features, target in run.loader:
        run.optimizer.zero_grad()
        seen = features.repeat_interleave(4, 0)
        seen = seen + 0.1 * torch.randn_like(seen)
        run.criterion(run.model(seen), target.repeat_interleave(4)).backward()
        for item in run.model.parameters():
            item.grad_sample = item.grad_sample.reshape(-1, 4, *item.shape).mean(1)
        run.optimizer.step()


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.4), nn.Linear(8, CLASSES))


class Tokens(nn.Module):
    """Attention within a record, with layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(2, 8)
        self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        seen = self.project(features.reshape(len(features), -1, 2))
        seen = functional.scaled_dot_product_attention(seen, seen, seen) + seen
        scores: Tensor = self.last(self.norm(seen).mean(1))
        return scores


def fixed_weights(run: Training, output: Tensor, target: Tensor) -> Tensor:
    weight = torch.tensor([1.0, 2.0, 3.0, 0.5])
    return functional.cross_entropy(output, target, weight=weight, reduction="sum") / BATCH


def smoothed(run: Training, output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target, label_smoothing=0.1)


def focal(run: Training, output: Tensor, target: Tensor) -> Tensor:
    log = output.log_softmax(1).gather(1, target[:, None])[:, 0]
    return (-((1.0 - log.exp()) ** 2) * log).mean()


def squared(run: Training, output: Tensor, target: Tensor) -> Tensor:
    return ((output - functional.one_hot(target, CLASSES)) ** 2).sum(1).mean()


def prototypes(run: Training, output: Tensor, target: Tensor) -> Tensor:
    """Similarity of each record to fixed, public directions."""
    fixed = functional.normalize(torch.eye(CLASSES) + 0.1, dim=1)
    return functional.cross_entropy(functional.normalize(output, dim=1) @ fixed.T, target)


def cropped(features: Tensor, _: Tensor) -> Tensor:
    padded = functional.pad(features, (1, 1, 1, 1))
    at = torch.randint(0, 3, (len(features), 2)).tolist()
    if not at:
        return features
    return torch.stack(
        [item[:, y : y + 8, x : x + 8] for item, (y, x) in zip(padded, at, strict=True)]
    )


CORRECT: dict[str, Run] = {
    "plain": mixed(),
    "plain, ghost": mixed(grad_sample_mode="ghost"),
    "plain, functorch": mixed(grad_sample_mode="functorch"),
    "four views averaged within a record": of(averaged, epochs=2),
    "dropout": mixed(network=dropping),
    "attention within a record": mixed(network=Tokens),
    "group norm": mixed(
        network=lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, CLASSES)
        ),
        data=images,
    ),
    "noisy inputs": mixed(lambda features, _: features + 0.1 * torch.randn_like(features)),
    "flipped": mixed(lambda features, _: features.flip(-1), network=convolution, data=images),
    "crops": mixed(cropped, network=convolution, data=images),
    "scaled": mixed(lambda features, _: (features - 0.3) / 0.2, network=convolution, data=images),
    "scaled to norm 1 each": mixed(lambda features, _: functional.normalize(features, dim=1)),
    "fixed class weights": mixed(loss=fixed_weights),
    "label smoothing": mixed(loss=smoothed),
    "focal loss": mixed(loss=focal),
    "squared loss": mixed(loss=squared),
    "similarity to fixed directions": mixed(loss=prototypes),
    "experts without a balance loss": mixed(network=Experts),
    "Adam": of(epochs=2, optimizer=lambda items: torch.optim.Adam(items, 0.01)),
    "little clip norm": of(epochs=2, clip_norm=0.05),
    "sums of losses": of(epochs=2, loss_reduction="sum"),
}
