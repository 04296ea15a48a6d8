import numpy as np
import pytest
import reference_formulas as reference
from peers import peer
from scipy import special

from pipeline.content import Const
from pipeline.detectors import GradNorm
from pipeline.errors import ConfigError
from pipeline.heads import LDAHead, LinearHead
from pipeline.testing import Data, DetectorLaws, drive, labelled, planted
from pipeline.views import Pooled


def gradient_norms(z, logits):
    excess = special.softmax(logits, axis=1) - 1 / logits.shape[1]
    outer = excess[:, :, None] * z[:, None, :]
    return -np.abs(outer).sum(axis=(1, 2))


class TestGradNorm(DetectorLaws):
    detector = GradNorm()

    def far_ood(self):
        """Rows near the origin, which no class claims: larger features have larger gradients."""
        data = planted()
        near = {name: 0.1 * data.arrays[name] for name in ("features", "logits")}
        return data.with_arrays(**near)

    def reference(self, train, test):
        return gradient_norms(reference.pooled(test), test["logits"])


def rows(features, logits):
    features, logits = np.asarray(features, np.float64), np.asarray(logits, np.float64)
    arrays = {"features": features, "logits": logits, "labels": np.zeros(len(logits), np.int64)}
    return Data(arrays, logits.shape[1])


def noise(n, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def scores(detector, data):
    return drive.scores_of(drive.outcome(detector, data.cut()), data.cut())


def gradients(z, weight, bias):
    """Return the L1 norm of the gradient of KL(uniform || softmax) by the weights, row by row."""
    import torch

    norms = []
    for row in torch.tensor(z):
        w = torch.tensor(weight, requires_grad=True)
        log_p = torch.log_softmax(w @ row + torch.tensor(bias), dim=0)
        uniform = torch.full_like(log_p, 1 / len(log_p))
        torch.nn.functional.kl_div(log_p, uniform, reduction="sum").backward()
        norms.append(w.grad.abs().sum().item())
    return np.array(norms)


@pytest.mark.parametrize("size", [0.0, 0.1, 1.0, 1e4])
def test_it_is_the_norm_of_the_gradient(size):
    z, weight, bias = noise(30), size * noise(7, seed=1), noise(1, 7, seed=2)[0]
    found = scores(GradNorm(), rows(z, z @ weight.T + bias))
    np.testing.assert_allclose(found, -gradients(z, weight, bias), rtol=1e-10)


def test_the_score_of_pytorch_ood():
    import torch

    z, weight, bias = noise(40), noise(7, seed=1), noise(1, 7, seed=2)[0]
    linear = torch.nn.Linear(12, 7)
    linear.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    theirs = peer("GradNorm")(linear, param_filter=lambda name: name == "weight")
    expected = theirs.predict(torch.tensor(z, dtype=torch.float32)).numpy()
    found = scores(GradNorm(**GradNorm.presets["pytorch-ood-0.4"]), rows(z, z @ weight.T + bias))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_preset_of_openood_sums_over_the_classes():
    data = labelled()
    total = scores(GradNorm(**GradNorm.presets["openood-1.5"]), data)
    np.testing.assert_allclose(total, 5 * scores(GradNorm(), data), rtol=1e-12)


def test_classes_without_rows_are_left_out():
    data = labelled()
    data = data.take(data.arrays["labels"] != 3)
    x, y, _ = reference.fit_rows(data.upcast())
    weight, bias = reference.linear_discriminant(x, y, 5)
    present = np.unique(y)
    z = reference.pooled(data.upcast())
    expected = gradient_norms(z, z @ weight[present].T + bias[present])
    np.testing.assert_allclose(scores(GradNorm(LDAHead()), data), expected, rtol=1e-8)
    scorer = drive.outcome(GradNorm(LDAHead()), data.cut())
    assert scorer.notes == ("softmax over 4 of 5 classes",)


def test_zero_features_and_huge_logits_are_finite():
    found = scores(GradNorm(), rows([[0.0, 0.0], [1.0, 1.0]], [[1e4, -1e4], [1e4, -1e4]]))
    np.testing.assert_array_equal(found, [0.0, -2.0])


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="reduce: 'max'"):
        GradNorm(reduce="max")
    head = LinearHead(Const(np.ones((5, 12))), Const(np.ones(5)), of=Pooled("mean", "other"))
    data = labelled().with_arrays(other=labelled().arrays["features"])
    with pytest.raises(ConfigError, match="same pool and field"):
        drive.outcome(GradNorm(head), data.cut())
