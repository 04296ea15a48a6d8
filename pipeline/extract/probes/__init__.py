"""Probes: arrays that a model has to compute, stored as others are, for detectors to read.

``odin(model, epsilon=0.0014)`` gives what ``model`` gives and ``odin_logits``, which the detector
``odin`` scores. Several are stacked: ``dropout(odin(model))``. Here is what each writes, and reads:

===========  =======================  =================  ==================================
probe        array                    detector           runs beside the plain one
===========  =======================  =================  ==================================
odin         odin_logits (k,)         odin               2 forward, 1 backward
dropout      dropout_logits (s k,)    mc_dropout         s forward
checkpoints  checkpoint_logits (m k,) deep_ensemble      m forward
adascale     adascale_features (d,)   adascale           2 forward, 1 backward
mahalanobis  mahalanobis_features     mahalanobis_odin   2 forward, 1 backward
===========  =======================  =================  ==================================
"""

from pipeline.extract.probes.activation_shift import adascale
from pipeline.extract.probes.dropping import dropout
from pipeline.extract.probes.gaussian import mahalanobis
from pipeline.extract.probes.members import checkpoints
from pipeline.extract.probes.perturbation import odin
from pipeline.extract.probes.probing import Probe, Probed, probed

__all__ = [
    "Probe",
    "Probed",
    "adascale",
    "checkpoints",
    "dropout",
    "mahalanobis",
    "odin",
    "probed",
]
