import numpy as np
import pytest
import reference_formulas as reference
from peers import peer
from scipy import special

from pipeline.content import Const
from pipeline.detectors import GradUncertainty
from pipeline.errors import ConfigError
from pipeline.heads import LDAHead, LinearHead
from pipeline.testing import Data, DetectorLaws, drive, labelled, planted
from pipeline.views import Pooled


def squared_gradients(z, logits):
    excess = logits.shape[1] * special.softmax(logits, axis=1) - 1
    with_bias = np.concatenate([z, np.ones((len(z), 1))], axis=1)
    return -((excess[:, :, None] * with_bias[:, None, :]) ** 2).sum(axis=(1, 2))


class TestGradUncertainty(DetectorLaws):
    detector = GradUncertainty()

    def far_ood(self):
        """Rows near the origin, which no class claims: larger features have larger gradients."""
        data = planted()
        near = {name: 0.1 * data.arrays[name] for name in ("features", "logits")}
        return data.with_arrays(**near)

    def reference(self, train, test):
        return squared_gradients(reference.pooled(test), test["logits"])


def rows(features, logits):
    features, logits = np.asarray(features, np.float64), np.asarray(logits, np.float64)
    arrays = {"features": features, "logits": logits, "labels": np.zeros(len(logits), np.int64)}
    return Data(arrays, logits.shape[1])


def noise(n, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def scores(detector, data):
    return drive.scores_of(drive.outcome(detector, data.cut()), data.cut())


def gradients(z, weight, bias):
    """Return the squared norm of the gradient of the cross entropy to ones, row by row."""
    import torch

    squares = []
    for row in torch.tensor(z):
        w, b = torch.tensor(weight, requires_grad=True), torch.tensor(bias, requires_grad=True)
        (-torch.log_softmax(w @ row + b, dim=0).sum()).backward()
        squares.append((w.grad**2).sum().item() + (b.grad**2).sum().item())
    return np.array(squares)


@pytest.mark.parametrize("size", [0.1, 1.0, 1e4])
def test_it_is_the_squared_norm_of_the_gradient(size):
    z, weight, bias = noise(30), size * noise(7, seed=1), noise(1, 7, seed=2)[0]
    found = scores(GradUncertainty(), rows(z, z @ weight.T + bias))
    np.testing.assert_allclose(found, -gradients(z, weight, bias), rtol=1e-10)


def test_the_score_of_pytorch_ood():
    import torch

    z, weight, bias = noise(40), noise(7, seed=1), noise(1, 7, seed=2)[0]
    linear = torch.nn.Linear(12, 7)
    linear.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    expected = peer("GradUncertainty")(linear).predict(torch.tensor(z, dtype=torch.float32))
    detector = GradUncertainty(**GradUncertainty.presets["pytorch-ood-0.4"])
    found = scores(detector, rows(z, z @ weight.T + bias))
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5)


def test_the_score_of_pytorch_ood_for_certain_rows():
    """Where p (1 - p) is below 1e-12 torch's binary cross entropy cuts the gradient off."""
    import torch

    gaps = np.linspace(5.0, 60.0, 40)
    z = gaps[:, None] * np.array([1.0, -0.3, 0.1])
    weight, bias = np.eye(3), np.array([0.0, 0.2, -0.1])
    linear = torch.nn.Linear(3, 3).double()
    linear.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    expected = peer("GradUncertainty")(linear).predict(torch.tensor(z)).numpy()
    data = rows(z, z @ weight.T + bias)
    cut_off = scores(GradUncertainty(**GradUncertainty.presets["pytorch-ood-0.4"]), data)
    np.testing.assert_allclose(cut_off, expected, rtol=1e-3)  # it rounds 1 - p to 1e-16
    exact = scores(GradUncertainty(), data)
    np.testing.assert_allclose(cut_off[gaps < 15], exact[gaps < 15], rtol=1e-10)
    assert (exact[gaps > 45] < -1e3).all()
    assert (cut_off[gaps > 45] > -1e-3).all()


@pytest.mark.parametrize("cutoff", [-1e-12, float("inf"), float("nan")])
def test_a_cutoff_is_a_small_probability(cutoff):
    with pytest.raises(ConfigError, match="cutoff"):
        GradUncertainty(cutoff=cutoff)


def test_classes_without_rows_are_left_out():
    data = labelled()
    data = data.take(data.arrays["labels"] != 3)
    x, y, _ = reference.fit_rows(data.upcast())
    weight, bias = reference.linear_discriminant(x, y, 5)
    present = np.unique(y)
    z = reference.pooled(data.upcast())
    expected = squared_gradients(z, z @ weight[present].T + bias[present])
    np.testing.assert_allclose(scores(GradUncertainty(LDAHead()), data), expected, rtol=1e-8)


def test_zero_features_and_huge_logits_are_finite():
    found = scores(GradUncertainty(), rows([[0.0, 0.0], [1.0, 1.0]], [[1e4, -1e4], [1e4, -1e4]]))
    np.testing.assert_array_equal(found, [-2.0, -6.0])


def test_a_head_over_other_features_is_refused():
    head = LinearHead(Const(np.ones((5, 12))), Const(np.ones(5)), of=Pooled("mean", "other"))
    data = labelled().with_arrays(other=labelled().arrays["features"])
    with pytest.raises(ConfigError, match="same pool and field"):
        drive.outcome(GradUncertainty(head), data.cut())
