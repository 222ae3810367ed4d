"""Black-box audit of finished classifiers: which of these models give their training set away?

Three models of the digits that scikit-learn ships: a regularised one, one that learnt its training
set by heart, and one trained with differential privacy. For each, a membership-inference attack is
mounted on 1,000 records whose membership was drawn before training, and epsilon is bounded from
below. Nothing inside the training is looked at.
"""

from __future__ import annotations

import warnings

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
from askgauss.blackbox.membership import Membership

warnings.filterwarnings("ignore", module="opacus")
CLAIM = ag.PrivacyClaim(epsilon=2.0, delta=1e-5)
FEATURES, LABELS = load_digits(return_X_y=True)
FEATURES = (FEATURES / 16.0).astype(np.float32)


def private_network(kept: np.ndarray) -> nn.Module:
    """A small network trained by Opacus to spend the claimed epsilon."""
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    data = TensorDataset(torch.tensor(FEATURES[kept]), torch.tensor(LABELS[kept]))
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(data, batch_size=64),
        target_epsilon=CLAIM.epsilon,
        target_delta=CLAIM.delta,
        epochs=10,
        max_grad_norm=1.0,
    )
    for _ in range(10):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return model.eval()


def main() -> None:
    membership = Membership.randomised(audited=np.arange(1000))
    kept = membership.train_indices(records=len(LABELS))
    print(f"{membership}; commitment {membership.digest[:16]}...")
    pair = (FEATURES, LABELS)
    tensors = TensorDataset(torch.tensor(FEATURES), torch.tensor(LABELS))
    values = {
        "regularised": losses(
            LogisticRegression(C=0.01).fit(FEATURES[kept], LABELS[kept]), pair, membership
        ),
        "overfit": losses(
            RandomForestClassifier(50).fit(FEATURES[kept], LABELS[kept]), pair, membership
        ),
        "private": losses(private_network(kept), tensors, membership),
    }
    for name, found in values.items():
        result = ag.audit(membership.scores(found), claim=CLAIM, auditor="one-run")
        print(f"\n--- {name} model ---\n{result}")


if __name__ == "__main__":
    main()
