"""Any trained classifier, black-box."""

# %% [markdown]
# # A finished classifier: what an attack sees, and what a bound says
#
# Three models of the handwritten digits: a regularised one, one that memorises its training set, and one trained with
# differential privacy. **Threat model:** the adversary sees the finished model's outputs. **Assumption:** membership of
# the audited records was drawn at random before training.

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import askgauss as ag
from askgauss.blackbox import losses
from askgauss.stats.attack_metrics import attack_metrics

warnings.simplefilter("ignore")
features, labels = load_digits(return_X_y=True)
features = (features / 16).astype(np.float32)

# %% [markdown]
# ## Draw membership before training

# %%
membership = ag.Membership.randomised(audited=range(1000))
keep = membership.train_indices(records=len(labels))
print(membership, f"commitment {membership.digest[:16]}...")

# %% [markdown]
# ## Train three models

# %%
regularised = LogisticRegression(C=0.01).fit(features[keep], labels[keep])
memorising = RandomForestClassifier(100).fit(features[keep], labels[keep])

network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
kept = TensorDataset(torch.tensor(features[keep]), torch.tensor(labels[keep]))
network, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
    module=network,
    optimizer=torch.optim.SGD(network.parameters(), lr=0.5),
    data_loader=DataLoader(kept, batch_size=64),
    target_epsilon=2.0,
    target_delta=1e-5,
    epochs=10,
    max_grad_norm=1.0,
)
for _ in range(10):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), targets).backward()
        optimizer.step()
private = network.eval()

# %% [markdown]
# ## Score the audited records, and audit

# %%
everything = TensorDataset(torch.tensor(features), torch.tensor(labels))
values = {
    "regularised": losses(regularised, (features, labels), membership),
    "memorising": losses(memorising, (features, labels), membership),
    "private": losses(private, everything, membership, progress=False),
}
claim = ag.PrivacyClaim(epsilon=2.0, delta=1e-5)
results = {
    name: ag.audit(membership.scores(found), claim=claim, auditor="one-run")
    for name, found in values.items()
}
for name, result in results.items():
    metrics = attack_metrics(
        *(membership.scores(values[name]).present, membership.scores(values[name]).absent)
    )
    print(
        f"{name:12} attack AUC {metrics.auc}, epsilon >= {result.epsilon_lower:.2f}: {result.verdict.value}"
    )

# %% [markdown]
# The memorising model violates the claim it never made. The bound of the private model is far below 2: black-box
# bounds of correct models usually are, which is no evidence that the noise is right.

# %%
print(results["memorising"])

# %% [markdown]
# ## The attack's ROC curve, with the region that the claim forbids
#
# Under (epsilon, delta)-DP no attack is above the grey line.

# %%
figure, axes = plt.subplots(figsize=(5, 4))
for name, found in values.items():
    scores = membership.scores(found)
    threshold = np.sort(found)[::-1]
    fpr = [(scores.absent >= item).mean() for item in threshold]
    tpr = [(scores.present >= item).mean() for item in threshold]
    axes.plot(fpr, tpr, label=name)
grid = np.linspace(1e-3, 1, 400)
allowed = np.minimum(np.exp(2.0) * grid + 1e-5, 1 - np.exp(-2.0) * (1 - 1e-5 - grid))
axes.plot(grid, np.minimum(allowed, 1), color="grey", linestyle="--", label="claim: epsilon 2")
axes.set(
    xscale="log",
    yscale="log",
    xlabel="false positive rate",
    ylabel="true positive rate",
    xlim=(1e-3, 1),
    ylim=(1e-3, 1),
)
axes.legend()
plt.show()
