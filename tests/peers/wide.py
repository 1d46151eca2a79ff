"""transformers in fp64 throughout: how far fp32 takes a model from what it stands for."""

from contextlib import contextmanager
from unittest import mock

import torch


@contextmanager
def nothing_narrow():
    """What transformers casts to fp32 whatever the model's type is (norms, softmax, rotary positions, the delta rule) stays fp64."""
    with (mock.patch.object(torch, "float32", torch.float64), mock.patch.object(torch, "float", torch.float64),
          mock.patch.object(torch.Tensor, "float", torch.Tensor.double)):  # fmt: skip
        yield
