"""Small networks that tests of probes run: a convolution, batch norm, dropout and a linear head."""

import torch

from pipeline.extract.model import Description

K, D, SIDE = 5, 6, 8


class Net(torch.nn.Module):
    """Images (n, 3, 8, 8) to tokens (n, 16, 6) and logits (n, 5) of their mean."""

    description = Description({}, {"features": "TD"})

    def __init__(self, rate=0.3, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.conv = torch.nn.Conv2d(3, D, 2, stride=2)
        self.norm = torch.nn.BatchNorm2d(D)
        self.norm.running_mean.uniform_(-0.5, 0.5)
        self.norm.running_var.uniform_(0.5, 1.5)
        self.drop = torch.nn.Dropout(rate)
        self.dropped = torch.nn.Identity()
        self.head = torch.nn.Linear(D, K)

    def forward(self, images):
        maps = torch.nn.functional.gelu(self.norm(self.conv(images)))
        tokens = self.dropped(self.drop(maps.flatten(2).transpose(1, 2)))
        return {"features": tokens, "logits": self.head(tokens.mean(dim=1))}


class Bytes(torch.nn.Module):
    """The same for images of uint8 (n, 8, 8, 3), which it normalises itself."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, images):
        return self.net((images.permute(0, 3, 1, 2).float() - 127) / 128)


def images(rows=7, seed=1):
    return torch.randn(rows, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def state_of(net):
    """Return all that a probe must leave as it was."""
    return {
        "weights": {name: each.clone() for name, each in net.state_dict().items()},
        "training": [each.training for each in net.modules()],
        "learning": [each.requires_grad for each in net.parameters()],
        "gradients": [each.grad for each in net.parameters()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()],
        "random": torch.get_rng_state(),
    }


def assert_same_state(one, other):
    assert {k: v for k, v in one.items() if k not in ("weights", "random")} == {
        k: v for k, v in other.items() if k not in ("weights", "random")
    }
    assert torch.equal(one["random"], other["random"])
    for name, each in one["weights"].items():
        assert torch.equal(each, other["weights"][name]), name
