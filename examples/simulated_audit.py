"""Audit a simulated DP-SGD run, then the same run with half the noise it claims."""

from __future__ import annotations

import askgauss as ag


def main() -> None:
    # 2,500 steps at q = 4096/50000: this noise multiplier is epsilon 8 at delta 1e-5.
    claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5, noise_multiplier=2.576)
    for noise_multiplier in (2.576, 2.576 / 2):
        transcript = ag.simulate_dpsgd(
            steps=2500,
            sampling_rate=4096 / 50000,
            noise_multiplier=noise_multiplier,
            present=2500,
            absent=2500,
        )
        print(f"DP-SGD with noise multiplier {noise_multiplier:g}, claiming {claim}:")
        print(ag.audit(transcript, claim=claim))
        print()


if __name__ == "__main__":
    main()
