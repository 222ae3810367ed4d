"""Compare auditors on the same scores."""

# %% [markdown]
# # Compare auditors on the same scores
#
# One simulated DP-SGD run that claims epsilon 8 at delta 1e-5: 2,500 steps at sampling rate 4096/50000, 2,500 inserted and
# 2,500 held-out canaries. Every method reads the same run; threat models and assumptions differ.

# %%
import matplotlib.pyplot as plt
import numpy as np

import askgauss as ag

rate, steps, claim = 4096 / 50000, 2500, ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
noise = ag.accounting.dpsgd_noise_multiplier(
    sampling_rate=rate, steps=steps, epsilon=8.0, delta=1e-5
)
run = ag.simulate_dpsgd(
    steps=steps, sampling_rate=rate, noise_multiplier=noise, present=2500, absent=2500
)
table = ag.compare(run, claim=claim)
table

# %% [markdown]
# ## Bounds as the claim grows
#
# The figure of the paper: how much of the claimed epsilon each method certifies. Ten runs a point.

# %%
methods = {
    "transcript, subsampled Gaussian steps": "subsampled-gaussian",
    "scores, exact Gaussian shift": "gaussian-shift",
    "f-DP in one run": "one-run-fdp",
    "one run": "one-run",
}
epsilons, found = (1.0, 2.0, 4.0, 8.0), {name: [] for name in methods}
for epsilon in epsilons:
    noise = ag.accounting.dpsgd_noise_multiplier(
        sampling_rate=rate, steps=steps, epsilon=epsilon, delta=1e-5
    )
    bounds = {name: [] for name in methods}
    for _ in range(10):
        run = ag.simulate_dpsgd(
            steps=steps, sampling_rate=rate, noise_multiplier=noise, present=1000, absent=1000
        )
        for name, method in methods.items():
            bounds[name].append(
                ag.audit(run, delta=1e-5, auditor=method, diagnostics=False).epsilon_lower
            )
    for name in methods:
        found[name].append(np.mean(bounds[name]))

figure, axes = plt.subplots(figsize=(6, 4))
axes.plot(epsilons, epsilons, color="grey", linestyle="--", label="claim")
for name, values in found.items():
    axes.plot(epsilons, values, marker="o", label=name)
axes.set(xlabel="claimed epsilon", ylabel="lower bound, mean of 10 runs")
axes.legend()
plt.show()

# %% [markdown]
# ## How many canaries does each method need?

# %%
from askgauss import power

for method in ("gaussian-shift", "one-run-fdp", "one-run"):
    plan = power.solve(
        epsilon=4.0,
        delta=1e-5,
        present=None,
        absent=5000,
        steps=steps,
        sampling_rate=rate,
        alternative=8.0,
        power=0.8,
        auditor=method,
    )
    print(f"{method:16} {plan}")
