"""The probes that need more than the model: weights of checkpoints, and fitted Gaussians."""

import numpy as np
import pytest
import torch
from probed_networks import D, K, Net, assert_same_state, images, state_of
from safetensors.torch import save_file

import pipeline as ff
from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.extract.model import Extractor
from pipeline.extract.probes import adascale, checkpoints, mahalanobis
from pipeline.extract.taps import tapped


@pytest.fixture
def files(tmp_path):
    """Weights of three networks: two of safetensors, one of torch."""
    found = [tmp_path / "a.safetensors", tmp_path / "b.safetensors", tmp_path / "c.pt"]
    for seed, path in enumerate(found):
        weights = Net(seed=seed + 1).state_dict()
        (save_file if path.suffix == ".safetensors" else torch.save)(weights, path)
    return found


def test_members_are_models_with_those_weights(files):
    net, x = Net(), images()
    with torch.no_grad():
        expected = [Net(seed=place + 1).eval()(x)["logits"] for place in range(3)]
    before = state_of(net)
    model = tapped(net, {"features": "conv", "logits": "head"}, layouts={"features": "NCHW"})
    for given in (net, model):
        found = Extractor(checkpoints(given, files))(x)
        members = found["checkpoint_logits"].reshape(7, 3, K)
        for place in range(3):
            assert torch.equal(members[:, place], expected[place])
        assert torch.equal(found["logits"], Extractor(net)(x)["logits"])
    assert_same_state(state_of(net), before)


def test_weights_that_do_not_fit_are_refused_and_nothing_is_changed(files, tmp_path):
    net = Net()
    before = state_of(net)
    save_file({"other": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(DataError, match="does not fit a Net"):
        checkpoints(net, [files[0], tmp_path / "other.safetensors"])
    with pytest.raises(MissingInputError, match="no file"):
        checkpoints(net, [files[0], tmp_path / "gone.pt"])
    with pytest.raises(ConfigError, match="are the same weights"):
        checkpoints(net, [files[0], files[0]])
    for few in ([], files[:1], str(files[0])):
        with pytest.raises(ConfigError, match="two files or more"):
            checkpoints(net, few)
    with pytest.raises(ConfigError, match="the model holds 0"):
        checkpoints(lambda x: x, files)
    assert_same_state(state_of(net), before)


def test_an_error_of_a_member_leaves_the_weights_of_the_model(files):
    net = Net()
    before = state_of(net)
    with pytest.raises(RuntimeError):
        checkpoints(net, files)(torch.zeros(2, 1, 1, 1))
    assert_same_state(state_of(net), before)


def rows(count=60):
    x = images(count, seed=4)
    return x, np.arange(count) % K


def fitted_on(net, x, y, **options):
    features = Extractor(net)(x)["features"].numpy()
    return ff.fit({"name": "mahalanobis_odin", **options}, (features, y), workers=1)


def by_the_paper(net, x, y, epsilon):
    """Lee et al. 2018, float64: features of x - epsilon sign(grad of the distance)."""
    net = net.eval().double()
    with torch.no_grad():
        z = net(x.double())["features"].mean(dim=1)
    means = torch.stack([z[y == c].mean(dim=0) for c in range(K)])
    centred = z - means[y]
    s = centred.T @ centred / len(z)
    inverse = torch.linalg.inv(s + 1e-6 * torch.trace(s) / D * torch.eye(D))
    moved = x.double().requires_grad_()
    apart = net(moved)["features"].mean(dim=1)[:, None, :] - means
    distance = torch.einsum("ncd,de,nce->nc", apart, inverse, apart).amin(dim=1)
    (gradient,) = torch.autograd.grad(distance.sum(), moved)
    with torch.no_grad():
        after = net(x.double() - epsilon * gradient.sign())["features"].mean(dim=1)
    apart = after[:, None, :] - means
    return after, torch.einsum("ncd,de,nce->nc", apart, inverse, apart).amin(dim=1)


def test_perturbed_features_and_scores_are_those_of_the_paper(tmp_path):
    net, (x, y) = Net(), rows()
    fitted = fitted_on(net, x, y)
    fitted.save(tmp_path / "gaussians")
    features, distances = by_the_paper(Net(), x, torch.tensor(y), 0.05)
    plain = Extractor(net)(x)
    found = Extractor(mahalanobis(net, fitted, 0.05))(x)
    assert all(torch.equal(found[name], each) for name, each in plain.items())
    torch.testing.assert_close(found["mahalanobis_features"], features, rtol=1e-5, atol=1e-5)
    scores = fitted["mahalanobis_odin"]({name: each.numpy() for name, each in found.items()})
    np.testing.assert_allclose(scores, distances, rtol=1e-3)
    for given in (fitted["mahalanobis_odin"], fitted["mahalanobis_odin"].scorer,
                  tmp_path / "gaussians", str(tmp_path / "gaussians")):  # fmt: skip
        again = Extractor(mahalanobis(net, given, 0.05))(x)
        assert torch.equal(again["mahalanobis_features"], found["mahalanobis_features"])


def test_gaussians_of_something_else_are_refused(tmp_path):
    net, (x, y) = Net(), rows()
    features = Extractor(net)(x)["features"].numpy()
    other = ff.fit("mahalanobis", (features, y), workers=1)
    with pytest.raises(ConfigError, match=r"a fitted mahalanobis_odin.*got none"):
        mahalanobis(net, other)
    several = {"a": {"name": "mahalanobis_odin"}, "b": {"name": "mahalanobis_odin", "ridge": 0.1}}
    with pytest.raises(ConfigError, match="got 2 in a Fitted"):
        mahalanobis(net, ff.fit(several, (features, y), workers=1))
    with pytest.raises(MissingInputError, match="is not there"):
        mahalanobis(net, tmp_path / "none")
    narrow = ff.fit("mahalanobis_odin", (features[..., :3], y), workers=1)
    with pytest.raises(DataError, match="6 features, the Gaussians were fitted on 3"):
        mahalanobis(net, narrow)(x)


def test_activations_move_as_in_openood():
    net, x = Net().eval(), images()
    moved = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(net(moved)["logits"].amax(dim=1).sum(), moved)
    size = gradient.abs().flatten(1)
    count = int(size.shape[1] * 0.05)
    chosen = torch.zeros_like(size).scatter_(1, size.topk(count, dim=1, largest=False).indices, 1)
    step = 0.5 * gradient.sign() * chosen.reshape(x.shape)
    with torch.no_grad():
        expected = net(x + step)["features"].double().mean(dim=1)
    found = Extractor(adascale(net))(x)["adascale_features"]
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found, Extractor(net)(x)["features"].double().mean(dim=1), atol=1e-4)
    for wrong in ({"fraction": 0.0}, {"fraction": 1.5}, {"step": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            adascale(net, **wrong)


def test_tokens_are_pooled_by_their_mask():
    class Masked(Net):
        def forward(self, images):
            found = super().forward(images)
            mask = torch.arange(16)[None, :] <= torch.arange(len(images))[:, None]
            return {**found, "mask": mask}

    found = Extractor(adascale(Masked(), step=1e-30))(images())
    counts = found["mask"].sum(dim=1, keepdim=True)
    kept = (found["features"].double() * found["mask"][:, :, None]).sum(dim=1) / counts
    torch.testing.assert_close(found["adascale_features"], kept)
