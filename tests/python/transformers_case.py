"""What the tests of attnsmith.transformers share."""

import unittest

import torch


class TransformersCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import attnsmith.transformers
        cls.adapter = attnsmith.transformers
        cls.adapter.register()

    def tokens(self, batch=3, length=12, seed=1):
        return torch.randint(1, 97, (batch, length), generator=torch.Generator().manual_seed(seed))
