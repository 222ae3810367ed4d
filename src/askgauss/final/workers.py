"""Work on the machines of a Ray cluster, or on the cores of this one."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from askgauss import _validate
from askgauss._text import one_line
from askgauss.exceptions import AskGaussError, MissingExtraError

__all__ = ["WorkerError", "as_finished", "ray_pool"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_RETRIES = 3


class WorkerError(AskGaussError):
    """The machines cannot be reached, or fail at one piece of work again and again."""


def as_finished(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    address: str,
    *,
    name: Callable[[Item], str] = lambda item: "one piece of work",
) -> Iterator[tuple[Item, Result]]:
    """Each item with what the function makes of it, as they finish.

    A few more are under way than there are cores.

    Args:
        function: A pure function: what is lost with its worker is simply done again.
        items: What it is called with.
        address: Address of a Ray cluster, or ``"local"`` for one on this machine.
        name: What to call an item in an error.

    Raises:
        MissingExtraError: Ray is not installed.
        WorkerError: The cluster does not answer, or an item kills its workers.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("Work on Ray needs it: install askgauss[ray].") from error
    started = not ray.is_initialized()
    if started:
        _connect(address)
    try:
        task = ray.remote(max_retries=_RETRIES)(function)
        ahead = 2 * max(int(ray.cluster_resources().get("CPU", 1)), 1)
        waiting = iter(items)
        running = {task.remote(item): item for item in itertools.islice(waiting, ahead)}
        while running:
            done, _ = ray.wait(list(running), num_returns=1)
            item = running.pop(done[0])
            try:
                result = ray.get(done[0])
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
                raise WorkerError(
                    f"The worker of {name(item)} died {_RETRIES + 1} times: {error}. What was "
                    "kept as it finished is not lost: with more memory a worker, start again."
                ) from error
            yield item, result
            for following in itertools.islice(waiting, 1):
                running[task.remote(following)] = following
    finally:
        if started:
            ray.shutdown()


def ray_pool(
    address: str = "local",
) -> Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]:
    """What is called like `map`, and calls its function on Ray; results are in order.

    Args:
        address: Address of a Ray cluster, or ``"local"`` for one on this machine.
    """

    def pool(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        def numbered(item: tuple[int, Any]) -> Any:
            return function(item[1])

        found = {
            index: result for (index, _), result in as_finished(numbered, enumerate(items), address)
        }
        return [found[index] for index in range(len(found))]

    return pool


def _connect(address: str) -> None:
    import ray

    if address != "local":
        _reach(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except ConnectionError as error:
            raise WorkerError(
                f"{error}. If the cluster at {address!r} asks for a token, set RAY_AUTH_MODE=token "
                "and, unless the token is in ~/.ray, RAY_AUTH_TOKEN."
            ) from error
        return
    # A cluster of our own is nobody else's to watch: no dashboard, and nothing reported home.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        ray.init(
            address="local", include_dashboard=False, log_to_driver=False, logging_level="error"
        )
    except Exception as error:
        ray.shutdown()
        raise WorkerError(
            f"Ray did not start on this machine: {one_line(str(error))} A busy machine, little "
            "shared memory (/dev/shm) or what an earlier Ray left running may be why: try again "
            "later, end leftovers with 'ray stop', or leave Ray out."
        ) from error


def _reach(address: str) -> None:
    """Ask whether anybody answers there: Ray itself waits for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:  # a name that Ray looks up, such as "auto"
        return
    if not (port.isdigit() and 0 < int(port) < 1 << 16):
        raise _validate.fail("ray", address, "to be 'local', 'auto' or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=10.0).close()
    except OSError as error:
        raise WorkerError(
            f"No Ray cluster answers at {address!r}: {error}. Start one there with 'ray start "
            "--head', or use 'local'."
        ) from error
