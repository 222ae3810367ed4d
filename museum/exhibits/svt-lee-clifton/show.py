"""A published mechanism on the pair that shows it best."""

from __future__ import annotations

from museum.published import show_case

# (1 + 6 c) / 4 times what is claimed, for c = 5 answers.
show_case("sparse vector, Lyu 4 (Lee and Clifton; iSVT3)", "sparse vector, Lyu 1", true=31 / 4)
