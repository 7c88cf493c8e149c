"""Networks: backbones, normalisation, the DeepLabv3 head and the classifier that grows.

Nothing is imported here, so that `nacre.models.config` can be read without torch.
"""
