"""Networks: ours, those of other libraries, their norms, weights and model files.

Nothing is imported here, so that `nacre.models.config` can be read without torch.
"""
