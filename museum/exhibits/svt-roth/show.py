"""A published mechanism on the pair that shows it best."""

from __future__ import annotations

import math

from museum.published import show_case

show_case("sparse vector, Lyu 3 (Roth; iSVT4)", "sparse vector, Lyu 1", true=math.inf)
