"""The runs: every fault, every verdict, every auditor, every integration, all from fixed seeds."""

from __future__ import annotations

import functools
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import askgauss as ag
from askgauss.auditors import auditor_types
from askgauss.federated import FEDERATED_FAULTS, simulate_federated
from askgauss.mechanisms import tree
from askgauss.policy import gate
from askgauss.results import AuditResult
from askgauss.sampling import EveryStep
from askgauss.simulation import FAULTS, TREE_FAULTS
from tests.faults import runs
from tests.mechanism_audit.exam import BROKEN, CORRECT
from tests.replay import runs as loops
from tests.seeds import unlikely
from tests.snapshots import commands, written

DELTA = 1e-5
# Results of simulations are the same but for the last digits; trained weights differ by more.
SIMULATED, TRAINED = 1e-5, 0.01
# Without noise, or of equal values, what is left is rounding: it decides numbers, not verdicts.
_ROUNDING = {
    "no-noise",
    "reseeded-on-resume",
    "tree-restart-reuse",
    "federated-no-server-noise",
}
# Pages take longest: one of each kind is enough.
_WITH_PAGE = {"correct", "half-noise", "no-noise", "nan-in-a-step", "shuffle-for-poisson"}


@dataclass(frozen=True)
class Case:
    """A fixed run.

    Args:
        name: Its file.
        make: The run and its audit.
        page: Whether its HTML is kept too.
        tolerance: How far numbers may be off on another processor, as a share; numbers below its
            square are rounding.
    """

    name: str
    make: Callable[[], Any]
    page: bool = False
    tolerance: float = SIMULATED

    @property
    def trains(self) -> bool:
        """Whether a framework is needed."""
        return self.tolerance == TRAINED

    def taken(self) -> written.Snapshot:
        """What the run answers."""
        snapshot = written.taken(*self._answers())
        return written.verdict_only(snapshot) if self.name in _ROUNDING else snapshot

    def _answers(self) -> tuple[Any, dict[str, str]]:
        result = self.make()
        documents = {"text": str(result)}
        for name in ("markdown", "junit"):
            if hasattr(result, f"to_{name}"):
                documents[name] = getattr(result, f"to_{name}")()
        if self.page:
            documents["html"] = result.to_html()
        fields = _plain(result)
        if isinstance(result, AuditResult):
            fields["exit_code"] = gate(result).exit_code
        return fields, documents


def _plain(result: Any) -> Any:
    return result.to_dict() if hasattr(result, "to_dict") else json.loads(result.to_json())


def cases() -> Iterator[Case]:
    """All of them."""
    seed = unlikely(1)
    for name, fault in {"correct": None, **FAULTS}.items():
        make = functools.partial(runs.audited, fault, seed)
        yield Case(name=name, make=make, page=name in _WITH_PAGE)
    for name, tree_fault in {"tree-correct": None, **TREE_FAULTS}.items():
        make_tree = functools.partial(runs.audited_tree, tree_fault, seed)
        yield Case(name=name, make=make_tree, page=name == "tree-correct")
    for name, federated_fault in {"correct": None, **FEDERATED_FAULTS}.items():
        yield Case(name=f"federated-{name}", make=functools.partial(_federated, federated_fault))
    for auditor in auditor_types():
        yield Case(name=f"auditor-{auditor}", make=functools.partial(_audited_by, auditor))
    yield Case(name="comparison", make=_comparison)
    yield Case(name="scores-undeclared", make=_undeclared, page=True)
    for membership in ("randomised", "fixed", None):
        yield Case(
            name=f"membership-{membership or 'unknown'}",
            make=functools.partial(_membership, membership),
        )
    yield Case(name="replaced-record", make=_replaced)
    yield Case(name="bands", make=_bands)
    yield Case(name="snapshots-of-weights", make=_final)
    yield Case(name="mechanism-correct", make=functools.partial(_mechanism, CORRECT[0]))
    yield Case(name="mechanism-broken", make=functools.partial(_mechanism, BROKEN[0]))
    yield Case(name="replay-correct", make=_replay)
    yield Case(name="replay-unclipped", make=functools.partial(_replay, clip=False))
    yield Case(name="flower", make=_flower)
    for name in commands.COMMANDS:
        yield Case(name=f"command-{name}", make=functools.partial(commands.printed, name))
    yield Case(name="opacus", make=_opacus, page=True, tolerance=TRAINED)
    yield Case(
        name="opacus-ghost", make=functools.partial(_opacus, mode="ghost"), tolerance=TRAINED
    )
    yield Case(
        name="opacus-half-noise", make=functools.partial(_opacus, weaker=0.5), tolerance=TRAINED
    )
    yield Case(name="jax", make=_jax, tolerance=TRAINED)
    yield Case(name="dpftrl-optimizer", make=_torch_ftrl, tolerance=TRAINED)
    yield Case(name="lightning", make=_lightning, tolerance=TRAINED)
    yield Case(name="transformers", make=_transformers, tolerance=TRAINED)
    yield Case(name="keras", make=_keras, tolerance=TRAINED)


def _federated(fault: Any) -> AuditResult:
    sampling = EveryStep()
    epsilon = sampling.epsilon(noise_multiplier=2.0, steps=60, delta=DELTA)
    claim = ag.PrivacyClaim(
        epsilon=epsilon,
        delta=DELTA,
        noise_multiplier=2.0,
        steps=60,
        sampling=sampling,
        unit="user",
    )
    recorded = simulate_federated(
        rounds=60,
        clients=30,
        noise_multiplier=2.0,
        present=40,
        absent=300,
        dimension=600,
        fault=fault,
        seed=unlikely(1) % 2**63,
    )
    return ag.audit(recorded, claim=claim)


@functools.cache
def _scores() -> ag.CanaryScores:
    generator = np.random.default_rng(unlikely(1))
    present, absent = generator.normal(1.5, 1.0, 800), generator.normal(0.0, 1.0, 800)
    return ag.CanaryScores.from_groups(present=present, absent=absent, noise="gaussian")


def _audited_by(auditor: str) -> AuditResult:
    data: Any = _scores()
    if auditor in ("subsampled-gaussian", "max-cosine"):
        data = runs.simulated(None, unlikely(1))
    claim = ag.PrivacyClaim(epsilon=8.0, delta=DELTA)
    return ag.audit(data, claim=claim, auditor=auditor_types()[auditor]())


def _comparison() -> Any:
    made = ag.compare(_scores(), delta=DELTA)
    return replace(made, rows=tuple(replace(row, seconds=0.0) for row in made.rows))


def _undeclared() -> AuditResult:
    generator = np.random.default_rng(unlikely(2))
    scores = ag.CanaryScores.from_groups(
        present=generator.laplace(1.0, 1.0, 400), absent=generator.laplace(0.0, 1.0, 400)
    )
    return ag.audit(scores, claim=ag.PrivacyClaim(epsilon=1.0, delta=DELTA))


def _membership(membership: Any) -> AuditResult:
    generator = np.random.default_rng(unlikely(3))
    member = generator.random(600) < 0.5
    scores = ag.CanaryScores(
        score=generator.normal(size=600) + 0.5 * member, member=member, membership=membership
    )
    return ag.audit(scores, claim=ag.PrivacyClaim(epsilon=2.0, delta=DELTA))


def _replaced() -> AuditResult:
    claim = replace(runs.claim_of(None), adjacency="replace")
    return ag.audit(runs.simulated(None, unlikely(1)), claim=claim)


def _bands() -> AuditResult:
    noise = tree.noise_multiplier(epsilon=4.0, delta=DELTA, steps=64)
    recorded = ag.simulate_dpftrl(
        steps=64,
        noise_multiplier=noise,
        present=200,
        absent=200,
        seed=unlikely(4),
        release="prefixes",
        estimator="honaker",
    )
    return ag.audit(recorded, claim=ag.PrivacyClaim(epsilon=4.0, delta=DELTA))


def _final() -> AuditResult:
    from askgauss.final import weight_scores
    from tests.final.test_weights import trained

    canaries, before, after, linear, _ = trained({"momentum": 0.9}, seed=unlikely(5))
    scores = weight_scores(
        before,
        after,
        canaries,
        filter=linear,
        clip_norm=1.0,
        sampling_rate=0.1,
        background=[0.0] * 1600,
    )
    return ag.audit(scores, claim=ag.PrivacyClaim(epsilon=8.0, delta=DELTA))


def _mechanism(case: Any) -> Any:
    return ag.audit_mechanism(
        case.mechanism, case.data, case.neighbour, claim=case.claim, seed=unlikely(6)
    )


def _replay(**faults: Any) -> Any:
    return ag.replay(loops.training(**faults), loops.records(), leave_out=17, seed=unlikely(7))


class _ServerSideClipping:
    """What an audit needs of Flower's strategy of this name, whose environment is another."""

    noise_multiplier, clipping_norm, num_sampled_clients = 2.0, 0.1, 30

    def __init__(self) -> None:
        self._generator = np.random.default_rng(unlikely(14))

    def aggregated(self, current: Any, answers: Any, weights: list[float]) -> Any:
        """The weighted mean of clipped updates, with the noise of one of them."""
        deviation = self.noise_multiplier * self.clipping_norm / self.num_sampled_clients
        updates = [[new - old for new, old in zip(item, current, strict=True)] for item in answers]
        norms = [np.sqrt(sum(np.vdot(part, part) for part in update)) for update in updates]
        shares = [min(1.0, self.clipping_norm / max(norm, 1e-30)) for norm in norms]
        factors = np.multiply(shares, weights) / np.sum(weights)
        return [
            old
            + sum(factor * update[place] for factor, update in zip(factors, updates, strict=True))
            + self._generator.normal(0.0, deviation, old.shape)
            for place, old in enumerate(current)
        ]


def _flower() -> AuditResult:
    """Rounds as Flower's strategies hand them over, without Flower (``make flower`` has it)."""
    from askgauss.integrations.flower import _Flower

    generator = np.random.default_rng(unlikely(15))
    rounds, shapes = 40, ((50, 15), (750,))
    strategy = _ServerSideClipping()
    audit = _Flower(
        strategy,
        present=50,
        absent=950,
        sampling=None,
        probes=True,
        seed=unlikely(15),
        monitor=None,
    )
    current = [np.zeros(shape) for shape in shapes]
    for _ in range(rounds):
        answers = [
            [old + generator.normal(0, 0.004, old.shape) for old in current] for _ in range(30)
        ]

        def probe(given: Any, moved: Any, weights: Any, before: Any = current) -> Any:
            return given.aggregated(before, moved, weights)

        def aggregate(
            given: Any, moved: Any, weights: Any, before: Any = current, own: Any = answers
        ) -> Any:
            new = given.aggregated(before, [*own, *moved], [100.0] * len(own) + weights)
            return new, new

        current = audit._round(current, answers, [100.0] * 30, aggregate, probe)
    sampling = EveryStep()
    claim = ag.PrivacyClaim(
        epsilon=sampling.epsilon(noise_multiplier=2.0, steps=rounds, delta=DELTA),
        delta=DELTA,
        noise_multiplier=2.0,
        steps=rounds,
        sampling=sampling,
        unit="user",
    )
    return audit.result(claim=claim)


def _keras() -> AuditResult:
    from tests.integrations import keras_process

    return AuditResult.from_json(keras_process.printed("--snapshots")["keras"])


def _opacus(mode: str = "hooks", weaker: float = 1.0) -> AuditResult:
    from askgauss.integrations.opacus import CanaryAudit
    from tests.integrations.lightning_runs import weaken
    from tests.integrations.runs import make_run

    run = make_run(mode=mode, seed=8)
    if weaker != 1.0:
        weaken(run.optimizer, weaker)
    audit = CanaryAudit(
        run.optimizer,
        data_loader=run.loader,
        model=run.model,
        present=40,
        absent=60,
        seed=unlikely(8),
    )
    with audit:
        run.train(epochs=8)
    epsilon = run.engine.get_epsilon(DELTA)
    return audit.result(claim=ag.PrivacyClaim(epsilon=epsilon, delta=DELTA))


def _jax() -> AuditResult:
    import jax

    from tests.integrations import jax_runs

    audit = jax_runs.make()
    released, state = jax_runs.scanned(audit.wrap(jax_runs.gaussian()))
    jax.block_until_ready(released)
    return audit.result(state, claim=jax_runs.claim())


def _torch_ftrl() -> AuditResult:
    import torch
    from opacus import GradSampleModule
    from torch import nn

    from askgauss.integrations.torch_ftrl import DPFTRL

    torch.manual_seed(unlikely(9))
    model = GradSampleModule(nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 4)))
    optimizer = DPFTRL(
        model,
        learning_rate=0.1,
        clip_norm=1.0,
        noise_multiplier=tree.noise_multiplier(epsilon=8.0, delta=DELTA, steps=32),
        steps=32,
        expected_batch_size=8.0,
        seed=unlikely(9),
        canaries=ag.DiracCanaries(present=150, absent=300, dimension=804, seed=unlikely(10)),
        release="nodes",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(32):
            loss = nn.functional.cross_entropy(model(torch.randn(8, 20)), torch.arange(8) % 4)
            loss.backward()
            optimizer.step()
    return optimizer.result(claim=ag.PrivacyClaim(epsilon=8.0, delta=DELTA))


def _lightning() -> AuditResult:
    import lightning.pytorch as pl
    import torch

    from askgauss.integrations.lightning import AuditCallback
    from tests.integrations.lightning_runs import QUIET, Private, loader

    torch.manual_seed(unlikely(11))
    callback = AuditCallback(
        claim=ag.PrivacyClaim(epsilon=8.0, delta=DELTA),
        present=300,
        absent=600,
        seed=unlikely(11),
        report=False,
    )
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_epochs=3, default_root_dir=folder, callbacks=[callback], logger=False, **QUIET
        )
        trainer.fit(Private(), loader())
    return callback.result


def _transformers() -> AuditResult:
    from askgauss.integrations.transformers import AuditCallback
    from tests.integrations import transformers_runs as small

    callback = AuditCallback(
        claim=ag.PrivacyClaim(epsilon=8.0, delta=DELTA),
        present=300,
        absent=600,
        seed=unlikely(12),
        report=False,
    )
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = small.frozen_below(small.small_gpt2(width=64))
        trainer = small.PrivateTrainer(
            model, small.arguments(folder, 32), train_dataset=small.Lines()
        )
        trainer.add_callback(callback)
        trainer.train()
        return callback.result
