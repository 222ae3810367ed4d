"""What an Opacus run leaves behind: its transcript, and a checkpoint to go on from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from askgauss.checks.scope import AFTER_CLIPPING, BEFORE_CLIPPING, INPUT_SPACE
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import RecordingError
from askgauss.integrations.opacus import run_description as run
from askgauss.integrations.opacus.frozen import left_out
from askgauss.integrations.opacus.ledger import accounted_facts, accounting_notes
from askgauss.integrations.opacus.opacus_versions import DPPerLayerOptimizer, untried
from askgauss.integrations.opacus.private_step import RecordedSteps
from askgauss.integrations.opacus.restarts import Progress
from askgauss.integrations.same_run import digest
from askgauss.recording.commitment import Commitment
from askgauss.recording.transcript import Transcript
from askgauss.sampling import Poisson

__all__ = ["RecordedRun"]

_EXERCISED = {"sum": AFTER_CLIPPING, "sample": BEFORE_CLIPPING, "examples": INPUT_SPACE}


class RecordedRun(RecordedSteps):
    """Recorded steps, and what is known of the run beside them."""

    _outside: run.OutsideParameters
    _watched_all: bool
    _commitment: Commitment | None
    # How the user of this audit declares postprocessing, for what is advised.
    _declare = "audit.postprocessing()"

    def transcript(self) -> Transcript:
        """The transcript of the steps recorded so far.

        Raises:
            RecordingError: No step was recorded.
        """
        if self.steps == 0:
            raise RecordingError(
                f"Expected at least one step with noise, got none ({self._unnoised} steps of the "
                "wrapped optimizer went by without). Train inside the with block, with the "
                f"optimizer that make_private returned. {self._guard.reason}".rstrip()
            )
        recorded = self._recorder.transcript()
        facts, differs = accounted_facts(
            recorded, self._ledger, tolerate=run.adapts_clipping(self._optimizer)
        )
        batches, accounted = self._loader.drawn, None
        if self._sampling.scheme is not None and facts.accounted_sampling_rate:
            # Opacus' accountants know no other scheme.
            accounted = Poisson(rate=facts.accounted_sampling_rate)
        facts = replace(
            facts,
            outside=self._outside.names,
            outside_moved=self._outside.moved(),
            watch_background="known" if self._watched_all else None,
            weights=None
            if self._shadow is None
            else replace(self._shadow.facts, declare=self._declare),
            witness=self._witness.facts,
            clip_count=self._clip_count.facts,
            reuse=self._sampled.facts,
            rows=self._loader.trained.over_ranks,
            mixing=self._loader.trained.mixing_facts,
            commitment=self._commitment,
            seed_probe=self._seeds,
            unnoised_steps=self._unnoised,
            loader_poisson=self._sampling.poisson,
            tensors=self._names,
            batches=batches,
            accounted_scheme=accounted,
            found_scheme=self._loader.found,
            records=self._loader.records,
            settings=self._settings.facts,
            frozen=() if self._frozen is None else self._frozen.facts,
            ended=self._guard.reason,
            exercised=(
                *(() if batches is None else ("sampler",)),
                *_EXERCISED["sum" if self._beside else self._inject],
            ),
            precision=tuple(
                sorted({str(item.dtype).removeprefix("torch.") for item in self._parameters})
            ),
            notes=(*self._sampling.notes, *self._loader.notes(), *self._notes(differs)),
        )
        if self._probe is None:
            gone = () if self._frozen is None else self._frozen.tensors
            return left_out(recorded.with_facts(facts), gone)
        facts = replace(
            facts,
            poisson=self._sampling.poisson is True or self._sampling.declared,
            poisson_declared=self._sampling.poisson is None and self._sampling.declared,
            skipped_steps=self._probe.skipped,
            contribution=self._probe.contribution,
            notes=(*facts.notes, *self._probe.notes()),
        )
        recorded = replace(recorded, facts=facts, gram=self._probe.gram)
        if self._watch is None or not self._watched_all:
            return recorded
        return replace(
            recorded, watch_values=self._watch.values, watch_tensor=self._watch.tensor.copy()
        )

    def _transcript_for(self, claim: PrivacyClaim | None) -> Transcript:
        """The transcript, with what the accountant itself says at the delta of the claim."""
        recorded = self.transcript()
        if claim is None:
            return recorded
        epsilon = self._ledger.epsilon(float(claim.delta), float(claim.epsilon))
        return recorded.with_facts(replace(recorded.facts, accounted_epsilon=epsilon))

    def _notes(self, noise_differs: bool) -> list[str]:
        notes = [*filter(None, [untried()]), *accounting_notes(self._ledger, noise_differs)]
        if len(self._accumulated) > 1 or (self._store is not None and max(self._accumulated) > 1):
            notes.append(
                f"steps accumulate {min(self._accumulated)} to {max(self._accumulated)} batches, "
                "and canaries are planted at the rate of one batch."
            )
        notes += [
            f"the {item.name} was changed by hand in {item.changes:,} steps: that it depends on "
            "the step number alone is taken on trust."
            for item in self._settings.facts
            if item.changes and not (item.erratic or item.adapted or item.scheduler)
        ]
        if self._beside:
            notes.append(
                "the optimizer's own clipping keeps more than its sum, or draws random numbers: "
                "canaries were added to the clipped sum instead, so that training stays as it is."
            )
        if self._discarded:
            notes.append(f"noise was added {self._discarded} times without a step after it.")
        if run.adapts_clipping(self._optimizer):
            notes.append(
                "adaptive clipping spends part of the budget on the clip norm, and adds more noise "
                "to the gradients than the accountant's multiplier says."
            )
        if isinstance(self._optimizer, DPPerLayerOptimizer) and self._inject == "sample":
            norms = np.asarray(self._optimizer.max_grad_norms) / self._optimizer.max_grad_norm
            share = self._coordinates.clipped_apart(norms)[self._canaries.member].max(initial=0.0)
            notes.append(
                f"each layer clips its own part of a canary: at most {share:.3g} of the whole clip "
                "norm gets through."
            )
        return notes

    def _arrays(self) -> dict[str, Any]:
        state = self._recorder.state_dict()
        if self._probe is not None:
            state |= self._probe.arrays()
        state |= self._loader.arrays() | self._sampled.arrays()
        return state if self._watch is None else state | self._watch.arrays()

    def _progress(self) -> Progress:
        return Progress(
            inject=self._inject,
            known=self._known,
            seed=self._canaries.root_seed,
            unnoised=self._unnoised,
            discarded=self._discarded,
            ledger=self._ledger.state(),
            examples=None if self._probe is None else self._probe.progress,
            weights=digest(self._places, self._parameters),
            accumulated=tuple(sorted(self._accumulated)),
            moves=None if self._shadow is None else self._shadow.facts,
            state="" if self._shadow is None else self._shadow.state,
            witness=self._witness.facts,
            commitment=self._commitment,
            clip_count=self._clip_count.facts,
            rows=self._loader.trained.over_ranks,
            mixing=self._loader.trained.mixing_facts,
            seeds=self._seeds,
            settings=self._settings.facts,
            frozen=() if self._frozen is None else self._frozen.facts,
            beside=self._beside,
            ended=self._guard.reason,
        )

    def _go_on(self, arrays: dict[str, Any], progress: Progress) -> None:
        for name, theirs, mine in (
            ("inject", progress.inject, self._inject),
            ("known background", progress.known, self._known),
        ):
            if theirs != mine:
                raise RecordingError(
                    f"Expected a checkpoint of this run, got one whose {name} is {theirs!r} where "
                    f"this run has {mine!r}. Resume with the same settings."
                )
        if self._probe is not None:
            self._probe.check(arrays, progress.examples)
        recorder = self._recorder
        if self._probe is None and self._store is None and len(progress.accumulated) == 1:
            recorder = self._make_recorder(self._rate_of_a_step(progress.accumulated))
        held = arrays.get("state")
        if isinstance(held, dict):
            # Every step says its own, which a schedule or adaptive clipping may have moved since.
            arrays = arrays | {"state": held | {"clip_norm": recorder.clip_norm}}
        recorder.load_state_dict(arrays)
        self._recorder = recorder
        if self._probe is not None:
            self._probe.load(arrays, progress.examples)
        if self._watch is not None:
            self._watched_all = self._watch.load(arrays, self.steps)
        self._loader.load(arrays, self.steps)
        self._sampled.load(arrays)
        self._weights, self._accumulated = progress.weights, set(progress.accumulated)
        self._planted = arrays["drawn"].copy() if "drawn" in arrays else None
        self._step = None
        self._unnoised, self._discarded = progress.unnoised, progress.discarded
        self._ledger.load(progress.ledger)
        if self._shadow is not None:
            self._shadow.load(progress.moves, progress.state)
        self._witness.load(progress.witness, self._rank)
        self._clip_count.load(progress.clip_count)
        self._loader.trained.load(progress.rows, progress.mixing)
        self._commitment = progress.commitment
        self._seeds, self._unprobed = progress.seeds, True
        self._settings.load(progress.settings)
        if self._frozen is not None:
            self._frozen.load(progress.frozen)
        self._beside, self._guard.reason = progress.beside, progress.ended
