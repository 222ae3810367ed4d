"""Train with ghost clipping where batches are split to save memory."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from museum.opacus_runs import MANY, table, train
from museum.outcomes import Outcome, main
from opacus.utils.batch_memory_manager import BatchMemoryManager


def memory(loader: Any, optimizer: Any) -> AbstractContextManager[Any]:
    return BatchMemoryManager(data_loader=loader, max_physical_batch_size=32, optimizer=optimizer)


def show(variant: str) -> Outcome:
    return train(table(), ghost=True, memory=memory, **MANY).outcome()


main(show)
