"""The observers of an Opacus run. To add one: a module with a subclass of `Observer`, a line here.

The order is that in which they are called at each moment, and in which their notes are given.
"""

from __future__ import annotations

from askgauss.integrations.opacus.clip_counting import ClipCountWatch
from askgauss.integrations.opacus.exact_steps import ExactStepChecks
from askgauss.integrations.opacus.ledger import Ledger
from askgauss.integrations.opacus.loader_watch import LoaderWatch
from askgauss.integrations.opacus.moments import Observer, StepCount
from askgauss.integrations.opacus.noise_sampling import SampledNoise
from askgauss.integrations.opacus.private_step import CanaryMode
from askgauss.integrations.opacus.run_description import TrainingRun, adapts_clipping
from askgauss.integrations.opacus.settings_watch import SettingsWatch
from askgauss.integrations.opacus.shadow import OutsideParameters, ResumedWeights, Shadow
from askgauss.integrations.opacus.torch_seeds import FirstNoise

__all__ = ["make_observers"]


def make_observers(
    run: TrainingRun,
    mode: CanaryMode,
    count: StepCount,
    *,
    exact_share: float,
    seed: int,
    declare: str,
) -> tuple[Observer, ...]:
    """All observers of a run.

    Args:
        run: The training.
        mode: How canaries take part; the last of the observers.
        count: Steps so far.
        exact_share: The share of steps to check exactly.
        seed: Root of the random choices.
        declare: How the user declares postprocessing, for what is advised.
    """
    optimizer, places = run.optimizer, mode.places
    return (
        Ledger(
            run.accountant,
            count,
            adaptive=adapts_clipping(optimizer),
            other_scheme=run.sampling.scheme is not None,
        ),
        ResumedWeights(places, run.parameters, count),
        *(() if places is None else (Shadow(run, places, count, declare),)),
        OutsideParameters(run),
        SettingsWatch(optimizer),
        LoaderWatch(run, rows_only=not mode.drawn_by_recorder),
        ExactStepChecks(run, count, share=exact_share, seed=seed, averaging=mode.averaging),
        ClipCountWatch(optimizer, run.world),
        SampledNoise(run, count),
        FirstNoise(run),
        mode,
    )
