"""A vision transformer in plain torch, with class and register tokens, and a linear head."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm(x))


class VisionTransformer(nn.Module):
    """Images (n, 3, 16, 16) become 1 class token, 4 registers and 4 x 4 tokens of 8 features."""

    def __init__(self, classes=5, width=8, registers=4):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.first = nn.Parameter(torch.randn(1, 1 + registers, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(3)))
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(width, classes)

    def tokens(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.norm(self.blocks(torch.cat([self.first.expand(len(x), -1, -1), x], 1)))

    def forward(self, x):
        return self.head(self.drop(self.tokens(x)[:, 0]))


def images(rows, seed=0, side=16):
    return torch.randn(rows, 3, side, side, generator=torch.Generator().manual_seed(seed))
