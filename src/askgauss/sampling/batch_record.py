"""What the batches of a run say of its scheme, as it is written down."""

from __future__ import annotations

import math
from dataclasses import dataclass

from askgauss.exceptions import FileFormatError
from askgauss.sampling.batch_testing import SchemeSums, SchemeTest
from askgauss.sampling.scheme import Scheme

__all__ = ["DrawnBatches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBatches:
    """Batches that were held against a scheme, step by step, and what came of it.

    Attributes:
        scheme: What they were held against.
        steps: How many there were.
        records: Records that they may hold, or those of them that were looked at.
        drawn: How often such a record was in a batch.
        most: How often the record was in one that was drawn most often; None where not counted.
        tests: Every test; each p-value is below any level with at most that probability if the
            scheme drew them.
    """

    scheme: Scheme
    steps: int
    records: int
    drawn: int
    tests: tuple[SchemeTest, ...]
    most: int | None = None

    @classmethod
    def of(cls, sums: SchemeSums) -> DrawnBatches:
        """What was kept of the batches, tested."""
        return cls(
            scheme=sums.scheme,
            steps=sums.step,
            records=sums.seen,
            drawn=int(sums.count.sum()),
            tests=sums.tests(),
            most=int(sums.count.max()),
        )

    @property
    def chances(self) -> int:
        """How often a record could have been in a batch."""
        return self.steps * self.records

    def named(self, *names: str) -> tuple[SchemeTest, ...]:
        """The tests of these names."""
        return tuple(test for test in self.tests if test.name in names)

    def check(self, where: str) -> None:
        """Refuse what no batches are like, in facts that come from a file.

        Raises:
            FileFormatError: A number is out of its range.
        """
        if self.steps < 1 or self.records < 1 or not 0 <= self.drawn <= self.chances:
            raise FileFormatError(
                f"Expected {where} to have drawn at most every record in every step, got "
                f"{self.drawn} of {self.records} in {self.steps}."
            )
        if self.most is not None and not 0 <= self.most <= self.steps:
            raise FileFormatError(
                f"Expected {where} to have drawn a record in at most {self.steps} steps, got "
                f"{self.most}."
            )
        names = [test.name for test in self.tests]
        # Whether the rules were kept is always tested; nothing is tested twice.
        if "scheme" not in names or len({*names}) != len(names):
            raise FileFormatError(
                f"Expected {where} to have each test once, and that of the scheme, got {names}."
            )
        for test in self.tests:
            if not test.summary.strip():
                raise FileFormatError(f"Expected {where} to say what {test.name!r} found, got ''.")
            if math.isnan(test.p_value) or not 0.0 <= test.p_value <= 1.0:
                raise FileFormatError(
                    f"Expected {where} to have p-values in [0, 1], got {test.p_value}."
                )
