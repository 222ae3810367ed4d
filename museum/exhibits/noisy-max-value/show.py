"""A published mechanism on the pair that shows it best."""

from __future__ import annotations

import math

from museum.published import show_case

show_case("noisy maximum, exponential, the value", "noisy maximum, exponential", true=math.inf)
