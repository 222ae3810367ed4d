"""Hugging Face with LoRA."""

# %% [markdown]
# # A Hugging Face model with LoRA, white-box and black-box
#
# A small GPT-2 with random weights (nothing is downloaded) is fine-tuned with LoRA under differential privacy and audited twice:
# by a callback that sees every noisy gradient, and by the finished model's loss on canary texts. The training script is
# `examples/language_model.py`; this notebook runs it.

# %%
import sys

sys.path.insert(0, "../examples")
import language_model

# %% [markdown]
# ## The private trainer
#
# A `Trainer` whose optimizer and loader are Opacus':

# %%
import inspect

print(inspect.getsource(language_model.PrivateTrainer))

# %% [markdown]
# ## Train at epsilon 8, and audit from both sides
#
# The white-box bound is near the claim. The black-box bound is far below it: the adversary sees one loss per text, and only
# distribution-free auditors apply.

# %%
language_model.main(8.0)
