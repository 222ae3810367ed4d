"""Audit your Opacus run, break it, see it named."""

# %% [markdown]
# # Audit an Opacus run, break it, and see the fault named
#
# A small network on scikit-learn's handwritten digits, trained with Opacus. The audit is three lines around an
# unchanged loop. **Threat model:** the adversary sees every noisy gradient and knows all records but the canary.

# %%
import warnings

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit

warnings.simplefilter("ignore")
features, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(features / 16, dtype=torch.float32), torch.tensor(labels))


def make():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(data, batch_size=450),
        noise_multiplier=2.7,
        max_grad_norm=1.0,
    )
    return engine, model, optimizer, loader


def train(model, optimizer, loader, epochs=60):
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()


# %% [markdown]
# ## A correct run

# %%
engine, model, optimizer, loader = make()
with CanaryAudit(optimizer, loader, model=model) as audit:
    train(model, optimizer, loader)

claim = ag.PrivacyClaim(epsilon=engine.get_epsilon(1e-5), delta=1e-5)
result = audit.result(claim=claim)
print(result)

# %% [markdown]
# In a notebook a result shows itself as a card:

# %%
result

# %% [markdown]
# ## Break the noise
#
# Noise is added with half the multiplier that the accountant counts. The model trains better, and nothing else changes.

# %%
engine, model, optimizer, loader = make()
add_noise = optimizer.add_noise


def half_the_noise():
    accounted = optimizer.noise_multiplier
    optimizer.noise_multiplier = 0.5 * accounted
    add_noise()
    optimizer.noise_multiplier = accounted


optimizer.add_noise = half_the_noise
with CanaryAudit(optimizer, loader, model=model) as audit:
    train(model, optimizer, loader)
print(audit.result(claim=claim))

# %% [markdown]
# ## The commonest mistake: the loader from before `make_private`
#
# The loop below trains on the original loader. Clipping and noise are right, but batches are shuffled instead of
# Poisson-sampled, so that the accountant's epsilon does not describe the run.

# %%
engine, model, optimizer, loader = make()
public_loader = DataLoader(data, batch_size=450, shuffle=True)
with CanaryAudit(optimizer, loader, model=model) as audit:
    train(model, optimizer, public_loader, epochs=30)
print(audit.result(claim=claim))

# %% [markdown]
# ## Several augmented views of a record
#
# Each record is trained on as four rows, each clipped alone: one record then adds up to four clip norms.

# %%
engine, model, optimizer, loader = make()
with CanaryAudit(optimizer, loader, model=model) as audit:
    for _ in range(30):
        for inputs, targets in loader:
            views = torch.cat([inputs + 0.05 * torch.randn_like(inputs) for _ in range(4)])
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(views), targets.repeat(4)).backward()
            optimizer.step()
print(audit.result(claim=claim))
