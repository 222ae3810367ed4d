"""Flower: canary clients in the rounds of a strategy for central differential privacy.

Flower is imported when a strategy is wrapped, and not before.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.auditing import AuditedRun
from askgauss.exceptions import (
    InvalidArgumentError,
    MissingExtraError,
    RecordingError,
    UnsupportedError,
)
from askgauss.federated import CanaryClients, Joined
from askgauss.files import codec
from askgauss.files.checkpoint import Kept
from askgauss.monitor import Monitor, monitor_of
from askgauss.recording.transcript import LinearTranscript, Transcript
from askgauss.sampling import Scheme

__all__ = ["audited"]


def audited(
    strategy: Any,
    *,
    present: int = 50,
    absent: int = 1000,
    sampling: Scheme | None = None,
    probes: bool = True,
    seed: int | None = 0,
    monitor: Monitor | bool | None = None,
) -> Any:
    """A strategy with canary clients in every round of training.

    Canaries are added to the results of a round, after the clients have answered and before they
    are clipped: no client trains for them. ``num_sampled_clients`` counts them in while the round
    is aggregated, so that it is to the number of results as it was. They report the largest number
    of examples of the round, and metrics like those of its first client.

    Args:
        strategy: One of Flower's strategies for central differential privacy, fixed or adaptive:
            with clipping at the server, those of ``flwr.serverapp.strategy`` or the earlier ones of
            ``flwr.server.strategy``; with clipping by clients, those of ``flwr.serverapp.strategy``
            (canaries then clip as clients do, by Flower's own mod).
        present: Number of canary clients that take part.
        absent: Number of those that might have.
        sampling: How clients are drawn; all in every round if not given.
        probes: Whether copies of the strategy get updates that no client may upset it with.
        seed: Root of the canaries' random choices.
        monitor: Watches every round, and may end the run: ``Monitor(claim=claim)``, or True to hold
            it to the strategy's own noise multiplier.

    Returns:
        A strategy, to be used in place of the one given; with ``transcript()``, ``monitor`` and
        ``result(claim=...)``, whose arguments are those of `askgauss.audit`; and with ``save``,
        ``load`` and ``rounds`` for a server that is started again, as `AuditedAggregator` has them.

    Raises:
        MissingExtraError: Flower is not installed.
        UnsupportedError: The strategy is none of these.
    """
    try:
        import flwr
    except ImportError as error:
        raise MissingExtraError(
            "Expected Flower to be installed, got no module named flwr. Run pip install flwr."
        ) from error
    kind: type[_Flower]
    if hasattr(strategy, "aggregate_train") and hasattr(strategy, "current_arrays"):
        from flwr.serverapp.strategy import Strategy

        kind = _Messages
    elif hasattr(strategy, "aggregate_train") and hasattr(strategy, "clipping_norm"):
        from flwr.serverapp.strategy import Strategy

        kind = _ClippedMessages
    elif hasattr(strategy, "aggregate_fit") and hasattr(strategy, "current_round_params"):
        from flwr.server.strategy import Strategy

        kind = _Results
    else:
        raise UnsupportedError(
            f"Expected a strategy that clips at the server, got {type(strategy).__name__} of "
            f"Flower {flwr.__version__}. Wrap DifferentialPrivacyServerSideFixedClipping or "
            "DifferentialPrivacyServerSideAdaptiveClipping; where clients clip, one of "
            "flwr.serverapp.strategy."
        )
    return type("AuditedStrategy", (kind, Strategy), {})(
        strategy,
        present=present,
        absent=absent,
        sampling=sampling,
        probes=probes,
        seed=seed,
        monitor=monitor_of(monitor),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a line of the log for every client of a probe."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """The plain values of a checkpoint.

    Attributes:
        sizes: Entries of each array of the model; none before the first round.
        clients: What canary clients hold.
        model: A digest of the model that the last round released; empty if it is not known.
        unchanged: Whether clients started from what the round before had released.
    """

    sizes: tuple[int, ...] = ()
    clients: dict[str, Any] | None = None
    model: str = ""
    unchanged: bool | None = None


def _digest(arrays: Sequence[NDArray[Any]]) -> str:
    """Tells one model from another, also where it was kept in single precision."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.asarray(array, dtype=np.float32).tobytes())
    return found.hexdigest()[:32]


class _Flower(Kept, AuditedRun[()]):
    """What both kinds of strategies share: canaries join, the strategy aggregates, it is read."""

    result_ends = True
    _checkpoint_kind = "askgauss-flower-strategy"
    _checkpoint_schema = 3

    def __init__(
        self,
        strategy: Any,
        *,
        present: int,
        absent: int,
        sampling: Scheme | None,
        probes: bool,
        seed: int | None,
        monitor: Monitor | None,
    ) -> None:
        super().__init__()
        self.strategy = strategy
        self._monitor = monitor
        self._make = functools.partial(
            CanaryClients,
            present=present,
            absent=absent,
            sampling=sampling,
            divisor=self._divisor,
            seed=seed,
            monitor=monitor,
            probes=probes,
        )
        self._clients: CanaryClients | None = None
        # Honest clients of the round; None while a copy is probed.
        self._honest: int | None = None
        self._sizes: tuple[int, ...] = ()
        # Of what the last round released, and whether rounds so far went on from there.
        self._model, self._loaded = "", False
        self._unchanged: bool | None = None

    def __repr__(self) -> str:
        return f"Audited {self.strategy!r}"

    @property
    def monitor(self) -> Monitor | None:
        """What watches the rounds, if anything does."""
        return self._monitor

    @property
    def rounds(self) -> int:
        """Number of rounds that were released with canaries among their clients."""
        return 0 if self._clients is None else self._clients.recorder.steps

    def state_dict(self) -> dict[str, Any]:
        """Everything the audit needs to resume, between two rounds.

        The model, and what the strategy itself carries (an adaptive clip norm), are yours to save.
        """
        state: dict[str, Any] = {"state": None}
        if self._clients is not None:
            state = self._clients.state_dict()
        progress = _Progress(
            sizes=self._sizes,
            clients=state.pop("state"),
            model=self._model,
            unchanged=self._unchanged,
        )
        return {**state, "state": codec.to_plain(progress)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where `state_dict` was taken, with the model of the same round.

        Raises:
            FileFormatError: The state is not one of an audited strategy, or parts are missing.
            RecordingError: It belongs to other canaries or other settings.
        """
        progress: _Progress = codec.from_plain(_Progress, state.get("state"), "state")
        clients = None
        if progress.clients is not None:
            clients = self._canary_clients(progress.sizes)
            clients.load_state_dict({**state, "state": progress.clients})
        self._clients, self._sizes = clients, progress.sizes
        self._model, self._unchanged = progress.model, progress.unchanged
        self._loaded = True

    def transcript(self) -> Transcript | LinearTranscript:
        """What the rounds so far released about the canaries."""
        if self._clients is None:
            raise InvalidArgumentError(
                "Expected a round of training before the transcript, got none. Run the strategy."
            )
        return self._clients.transcript()

    def _canary_clients(self, sizes: tuple[int, ...]) -> CanaryClients:
        return self._make(
            dimension=sizes,
            noise_multiplier=float(self.strategy.noise_multiplier),
            count_deviation=getattr(self.strategy, "clipped_count_stddev", None),
        )

    def _check_model(self, current: list[NDArray[Any]]) -> None:
        """Hold what clients started from against what the round before released.

        Nobody says which round a loaded model is of. Where rounds have gone on from what was
        released, as Flower's own loop does, a model that did not come out of the audit's last round
        is of another.

        Raises:
            RecordingError: Model and audit are of two moments.
        """
        if not self._model:
            return
        same = _digest(current) == self._model
        if self._loaded and self._unchanged and not same:
            raise RecordingError(
                f"Expected the model that round {self.rounds:,} released, the last one in the "
                "audit's checkpoint, got another. Load the checkpoint of the same step of model "
                "and audit; or begin a new audit."
            )
        if self._loaded and same and self._clients is not None:
            self._clients.check_step(self.rounds)
        self._unchanged, self._loaded = same and self._unchanged is not False, False

    def _passed_by(self) -> None:
        """A round went by without canaries: what it released is not known here."""
        self._model = ""

    def _divisor(self, weights: NDArray[np.float64]) -> float:
        if self._honest is None:
            return float(weights.size)
        return float(self.strategy.num_sampled_clients + weights.size - self._honest)

    def _round(
        self,
        current: list[NDArray[Any]],
        answers: Sequence[list[NDArray[Any]]],
        weights: list[float],
        aggregate: Callable[[Any, list[list[NDArray[Any]]], list[float]], Any],
        probe: Callable[[Any, list[list[NDArray[Any]]], list[float]], Any],
    ) -> Any:
        """Aggregate a round.

        Args:
            current: The parameters that clients started from.
            answers: The parameters they answered.
            weights: The numbers of examples they reported.
            aggregate: Aggregates the round with canaries' parameters and numbers beside its own;
                returns the parameters, or None, and all that was returned.
            probe: Aggregates such parameters and numbers alone.
        """
        strategy = self.strategy
        self._check_model(current)
        if self._clients is None:
            self._sizes = tuple(array.size for array in current)
            self._clients = self._canary_clients(self._sizes)
        adaptive = hasattr(strategy, "target_clipped_quantile")
        updates = [
            [np.subtract(new, old) for new, old in zip(answer, current, strict=True)]
            for answer in answers
        ]
        self._honest = len(answers)
        joined = self._clients.join(updates, weights, clip_norm=float(strategy.clipping_norm))
        self._honest = None
        self._probe(self._clients, current, probe, adaptive)
        self._honest = len(answers)
        added = len(joined.updates)
        strategy.num_sampled_clients += added
        try:
            new, returned = aggregate(strategy, _moved(current, joined), joined.weights or [])
        finally:
            strategy.num_sampled_clients -= added
        mean = None if new is None else [a - b for a, b in zip(new, current, strict=True)]
        self._model = _digest(current if new is None else new)
        self._clients.read(mean, next_norm=float(strategy.clipping_norm) if adaptive else None)
        return returned

    def _probe(
        self,
        clients: CanaryClients,
        current: list[NDArray[Any]],
        probe: Callable[[Any, list[list[NDArray[Any]]], list[float]], Any],
        adaptive: bool,
    ) -> None:
        def call(copied: Any, updates: list[Any], weights: list[float] | None) -> Any:
            copied.num_sampled_clients = len(updates)
            joined = Joined(updates=updates, weights=weights, clients=len(updates))
            new = probe(copied, _moved(current, joined), weights or [])
            return None if new is None else [a - b for a, b in zip(new, current, strict=True)]

        with _quiet():
            clients.probe(
                self.strategy,
                call=call,
                clip_norm=lambda strategy: float(strategy.clipping_norm),
                weighted=True,
                adaptive=adaptive,
            )

    def aggregate_evaluate(self, *arguments: Any) -> Any:
        """As the strategy does."""
        return self.strategy.aggregate_evaluate(*arguments)

    def configure_evaluate(self, *arguments: Any) -> Any:
        """As the strategy does."""
        return self.strategy.configure_evaluate(*arguments)


def _moved(current: list[NDArray[Any]], joined: Joined) -> list[list[NDArray[Any]]]:
    """Parameters as clients with these updates answer them."""
    return [
        [old + update for old, update in zip(current, updates, strict=True)]
        for updates in joined.updates
    ]


class _Results(_Flower):
    """Strategies that aggregate results (``flwr.server.strategy``)."""

    def initialize_parameters(self, client_manager: Any) -> Any:
        """As the strategy does."""
        return self.strategy.initialize_parameters(client_manager)

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """As the strategy does."""
        return self.strategy.configure_fit(server_round, parameters, client_manager)

    def evaluate(self, server_round: int, parameters: Any) -> Any:
        """As the strategy does."""
        return self.strategy.evaluate(server_round, parameters)

    def aggregate_fit(self, server_round: int, results: list[Any], failures: list[Any]) -> Any:
        """As the strategy does, with canary clients among the results."""
        from flwr.common import FitRes, ndarrays_to_parameters, parameters_to_ndarrays

        if failures or not results:
            self._passed_by()
            return self.strategy.aggregate_fit(server_round, results, failures)
        proxy, first = results[0]

        def answer(parameters: list[NDArray[Any]], examples: float) -> Any:
            return proxy, FitRes(
                status=first.status,
                parameters=ndarrays_to_parameters(parameters),
                num_examples=int(examples),
                metrics=dict(first.metrics),
            )

        def released(strategy: Any, everyone: list[Any]) -> tuple[Any, Any]:
            returned = strategy.aggregate_fit(server_round, everyone, [])
            new = returned[0]
            return (parameters_to_ndarrays(new) if new else None), returned

        def canaries(moved: list[Any], weights: list[float]) -> list[Any]:
            return [answer(*pair) for pair in zip(moved, weights, strict=True)]

        return self._round(
            list(self.strategy.current_round_params),
            [parameters_to_ndarrays(result.parameters) for _, result in results],
            [float(result.num_examples) for _, result in results],
            lambda strategy, moved, weights: released(
                strategy, [*results, *canaries(moved, weights)]
            ),
            lambda strategy, moved, weights: released(strategy, canaries(moved, weights))[0],
        )


class _Messages(_Flower):
    """Strategies that aggregate messages (``flwr.serverapp.strategy``)."""

    def _current(self) -> Any:
        """The arrays that clients started from."""
        return self.strategy.current_arrays

    def _sent(self, reply: Any) -> Any:
        """A canary's reply as it leaves the client."""
        return reply

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        """As the strategy does."""
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def summary(self) -> None:
        """As the strategy does."""
        self.strategy.summary()

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> Any:
        """As the strategy does, with canary clients among the replies."""
        from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

        given = list(replies)
        if not given or any(reply.has_error() for reply in given):
            self._passed_by()
            return self.strategy.aggregate_train(server_round, given)
        records = [_only(reply.content.array_records, "ArrayRecord") for reply in given]
        metrics = [_only(reply.content.metric_records, "MetricRecord") for reply in given]
        key = getattr(self.strategy.strategy, "weighted_by_key", "num-examples")
        (arrays_name, record), (metrics_name, reported) = records[0], metrics[0]

        def answer(parameters: list[NDArray[Any]], examples: float) -> Any:
            arrays = {
                name: Array(np.asarray(value))
                for name, value in zip(record.keys(), parameters, strict=True)
            }
            return Message(
                metadata=given[0].metadata,
                content=RecordDict(
                    {
                        arrays_name: ArrayRecord(arrays),
                        metrics_name: MetricRecord({**reported, key: examples}),
                    }
                ),
            )

        def released(strategy: Any, everyone: list[Any]) -> tuple[Any, Any]:
            returned = strategy.aggregate_train(server_round, everyone)
            new = returned[0]
            return (new.to_numpy_ndarrays() if new else None), returned

        def canaries(moved: list[Any], weights: list[float]) -> list[Any]:
            return [self._sent(answer(*pair)) for pair in zip(moved, weights, strict=True)]

        return self._round(
            self._current().to_numpy_ndarrays(),
            [item.to_numpy_ndarrays() for _, item in records],
            [float(item[key]) for _, item in metrics],
            lambda strategy, moved, weights: released(
                strategy, [*given, *canaries(moved, weights)]
            ),
            lambda strategy, moved, weights: released(strategy, canaries(moved, weights))[0],
        )


class _ClippedMessages(_Messages):
    """Strategies whose clients clip what they send; canaries do by the mod that clients have."""

    _arrays: Any = None

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        """As the strategy does."""
        self._arrays = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def _current(self) -> Any:
        if self._arrays is None:
            raise InvalidArgumentError(
                "Expected configure_train before aggregate_train, got none: it says what clients "
                "started from. Run the strategy with start()."
            )
        return self._arrays

    def _sent(self, reply: Any) -> Any:
        from flwr.app import ConfigRecord, Message, RecordDict
        from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
        from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM

        asked = RecordDict(
            {
                "arrays": self._current(),
                "config": ConfigRecord({KEY_CLIPPING_NORM: float(self.strategy.clipping_norm)}),
            }
        )
        message = Message(metadata=reply.metadata, content=asked)
        adaptive = hasattr(self.strategy, "target_clipped_quantile")
        clip = adaptiveclipping_mod if adaptive else fixedclipping_mod
        with _quiet():
            return clip(message, None, lambda *_: reply)


def _only(records: Any, what: str) -> tuple[str, Any]:
    """The one record of a kind that a reply has."""
    if len(records) != 1:
        raise InvalidArgumentError(
            f"Expected every reply to have one {what}, got {len(records)}. Send parameters and "
            "metrics in one record each."
        )
    name, record = next(iter(records.items()))
    return str(name), record
