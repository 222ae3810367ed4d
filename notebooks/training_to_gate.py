"""From training to gate and evidence."""

# %% [markdown]
# # From training to a gate, and evidence that travels with the model
#
# Training writes a transcript; the command line audits it, gates on its exit code, and writes evidence for a release.

# %%
import warnings
from pathlib import Path
import tempfile

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from askgauss.integrations.opacus import CanaryAudit

warnings.simplefilter("ignore")
folder = Path(tempfile.mkdtemp())
features, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(features / 16, dtype=torch.float32), torch.tensor(labels))
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
engine = PrivacyEngine()
model, optimizer, loader = engine.make_private(
    module=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
    data_loader=DataLoader(data, batch_size=450),
    noise_multiplier=2.7,
    max_grad_norm=1.0,
)
with CanaryAudit(optimizer, loader, model=model) as audit:
    for _ in range(60):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()

audit.transcript().save(folder / "transcript.npz")
torch.save(model.state_dict(), folder / "model.pt")
epsilon = engine.get_epsilon(1e-5)
print(f"the accountant reports epsilon {epsilon:.2f}")

# %% [markdown]
# ## Audit on the command line
#
# Exit code 0 means CONSISTENT; 1 VIOLATION; 3 INCONCLUSIVE or INVALID; 2 usage.

# %%
import subprocess


def shell(*arguments):
    done = subprocess.run(
        ["askgauss", *map(str, arguments)], capture_output=True, text=True, cwd=folder
    )
    print(done.stdout.strip() or done.stderr.strip())
    print(f"exit code {done.returncode}")


shell(
    "audit",
    "transcript.npz",
    "--epsilon",
    f"{epsilon:.3f}",
    "--delta",
    "1e-5",
    "--json",
    "audit.json",
    "--html",
    "audit.html",
)

# %% [markdown]
# The same transcript against a claim that is too small fails:

# %%
shell("audit", "transcript.npz", "--epsilon", f"{0.5 * epsilon:.3f}", "--delta", "1e-5")

# %% [markdown]
# ## Evidence, and somebody else's check of it

# %%
shell("attest", "audit.json", "--subject", "model.pt", "--output", "evidence")
print(sorted(path.name for path in (folder / "evidence").iterdir()))
shell("verify", "audit.json", "transcript.npz")
