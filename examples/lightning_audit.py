"""A Lightning module trained with Opacus, and audited by a callback.

Run with ``python examples/lightning_audit.py``; it takes about a minute on one core.
"""

from __future__ import annotations

import tempfile
import warnings

import lightning.pytorch as pl
import torch
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from opacus.data_loader import DPDataLoader
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import askgauss as ag
from askgauss.integrations.lightning import AuditCallback

RECORDS, FEATURES, CLASSES, BATCH, EPOCHS = 4096, 64, 4, 256, 6
EPSILON, DELTA = 8.0, 1e-5


class Classifier(pl.LightningModule):
    """Two layers; private from `configure_optimizers` on."""

    def __init__(self, noise_multiplier: float) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 128), torch.nn.ReLU(), torch.nn.Linear(128, CLASSES)
        )
        self.noise_multiplier = noise_multiplier
        self.engine = PrivacyEngine()

    def training_step(self, batch, batch_idx):
        """The usual loss."""
        features, labels = batch
        return functional.cross_entropy(self.network(features), labels)

    def configure_optimizers(self):
        """Opacus' optimizer, around the network that the step uses."""
        self.trainer.fit_loop.setup_data()
        hooked, optimizer, _ = self.engine.make_private(
            module=self.network,
            optimizer=torch.optim.SGD(self.network.parameters(), lr=0.5),
            data_loader=self.trainer.train_dataloader,
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=1.0,
            poisson_sampling=False,  # the trainer's loader is Opacus' already
        )
        # In a dictionary, so that its weights are not those of the module a second time.
        self.hooked = {"network": hooked}
        return optimizer

    def on_save_checkpoint(self, checkpoint):
        """Keep what was accounted: a run that is resumed has to go on counting."""
        checkpoint["accountant"] = self.engine.accountant.state_dict()

    def on_load_checkpoint(self, checkpoint):
        """Go on counting."""
        self.engine.accountant.load_state_dict(checkpoint["accountant"])


def main() -> None:
    warnings.simplefilter("ignore")
    pl.seed_everything(0, verbose=False)
    centres = torch.randn(CLASSES, FEATURES)
    labels = torch.arange(RECORDS) % CLASSES
    data = TensorDataset(centres[labels] + 2.0 * torch.randn(RECORDS, FEATURES), labels)
    loader = DPDataLoader.from_data_loader(DataLoader(data, batch_size=BATCH))
    noise = get_noise_multiplier(
        target_epsilon=EPSILON,
        target_delta=DELTA,
        sample_rate=BATCH / RECORDS,
        steps=EPOCHS * RECORDS // BATCH,
        accountant="prv",
    )
    claim = ag.PrivacyClaim(epsilon=EPSILON, delta=DELTA)
    with tempfile.TemporaryDirectory() as folder:
        audit = AuditCallback(claim=claim, monitor=True)
        trainer = pl.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            callbacks=[audit],
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Classifier(noise), loader)
        print(audit.result)
        print("\nwritten:", ", ".join(sorted(item.name for item in audit.folder.iterdir())))


if __name__ == "__main__":
    main()
