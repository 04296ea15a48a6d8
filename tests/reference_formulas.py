"""What each detector is in its paper: plain float64 numpy over whole arrays, loops and inverses."""

import numpy as np
from scipy import special


def pooled(arrays):
    x = arrays["features"].astype(np.float64)
    return x.mean(axis=1) if x.ndim == 3 else x


def fit_rows(train):
    """Return features, labels and logits of the rows that count: those with a label."""
    known = train["labels"] >= 0
    return pooled(train)[known], train["labels"][known], train["logits"][known]


def msp(logits):
    return 1.0 - special.softmax(logits, axis=1).max(axis=1)


def max_logit(logits):
    return -logits.max(axis=1)


def energy(logits, temperature=1.0):
    return -temperature * special.logsumexp(logits / temperature, axis=1)


def ridged_inverse(covariance, ridge=1e-6):
    d = len(covariance)
    return np.linalg.inv(covariance + ridge * np.trace(covariance) / d * np.eye(d))


def class_gaussians(x, y):
    """Return the class means and the covariance about them, divided by the number of rows."""
    means = {c: x[y == c].mean(axis=0) for c in np.unique(y)}
    centred = x - np.stack([means[c] for c in y])
    return list(means.values()), centred.T @ centred / len(x)


def squared_distances(x, mean, precision):
    return np.einsum("...i,ij,...j->...", x - mean, precision, x - mean)


def mahalanobis(x, y, test, invert=ridged_inverse):
    means, covariance = class_gaussians(x, y)
    precision = invert(covariance)
    return np.min([squared_distances(test, mean, precision) for mean in means], axis=0)


def relative_mahalanobis(x, y, test, invert=ridged_inverse):
    background = invert(np.cov(x.T, ddof=0))
    return mahalanobis(x, y, test, invert) - squared_distances(test, x.mean(axis=0), background)


def kl_matching(train_logits, test_logits):
    p, q = special.softmax(train_logits, axis=1), special.softmax(test_logits, axis=1)
    predicted = p.argmax(axis=1)
    templates = [p[predicted == c].mean(axis=0) for c in np.unique(predicted)]
    return np.min([special.rel_entr(q, template).sum(axis=1) for template in templates], axis=0)


def she(x, y, logits, test, test_logits):
    """A class without a correct row has the zero pattern."""
    patterns = np.zeros((logits.shape[1], x.shape[1]))
    correct = logits.argmax(axis=1) == y
    for c in np.unique(y[correct]):
        patterns[c] = x[correct & (y == c)].mean(axis=0)
    predicted = test_logits.argmax(axis=1)
    return -np.array([z @ patterns[c] for z, c in zip(test, predicted, strict=True)])


def vim(x, weight, bias, test, dim):
    u = -np.linalg.pinv(weight, rtol=1e-10) @ bias
    _, _, axes = np.linalg.svd(x - u, full_matrices=True)
    residual = axes[dim:].T
    alpha = (x @ weight.T + bias).max(axis=1).sum()
    alpha /= np.linalg.norm((x - u) @ residual, axis=1).sum()
    virtual = alpha * np.linalg.norm((test - u) @ residual, axis=1)
    return virtual + energy(test @ weight.T + bias)


def linear_discriminant(x, y, classes, ridge=1e-6):
    """Return W and b of linear discriminant analysis about the overall mean."""
    means, covariance = class_gaussians(x, y)
    centre = x.mean(axis=0)
    precision = ridged_inverse(covariance, ridge)
    weight, bias = np.zeros((classes, x.shape[1])), np.full(classes, -1e30)
    for c, mean in zip(np.unique(y), means, strict=True):
        offset = mean - centre
        weight[c] = precision @ offset
        bias[c] = -offset @ precision @ offset / 2 + np.log((y == c).mean()) - weight[c] @ centre
    return weight, bias
