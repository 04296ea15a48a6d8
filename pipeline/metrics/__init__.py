"""Metrics: values whose passes ask for one small statistic and end in exact numbers.

Each is a thin wrapper of a pure function of the statistic's result, which may be called alone.
"""

import importlib
from typing import Any

from pipeline.metrics.adaptive import ACE as ACE
from pipeline.metrics.adaptive import ClasswiseECE as ClasswiseECE
from pipeline.metrics.bands import ROC as ROC
from pipeline.metrics.bands import Band as Band
from pipeline.metrics.bands import Drawn as Drawn
from pipeline.metrics.bands import PrecisionRecall as PrecisionRecall
from pipeline.metrics.bootstrap import ImageIntervals as ImageIntervals
from pipeline.metrics.bootstrap import image_intervals as image_intervals
from pipeline.metrics.calibration import ECE as ECE
from pipeline.metrics.calibration import MCE as MCE
from pipeline.metrics.calibration import RMSCE as RMSCE
from pipeline.metrics.calibration import Reliability as Reliability
from pipeline.metrics.calibration import ReliabilityDiagram as ReliabilityDiagram
from pipeline.metrics.coefficients import accuracy as accuracy
from pipeline.metrics.coefficients import balanced_accuracy as balanced_accuracy
from pipeline.metrics.coefficients import generalised_dice as generalised_dice
from pipeline.metrics.coefficients import kappa as kappa
from pipeline.metrics.coefficients import mcc as mcc
from pipeline.metrics.comparison import Scored as Scored
from pipeline.metrics.comparison import agreement as agreement
from pipeline.metrics.comparison import compared as compared
from pipeline.metrics.confusion import ConfusionMatrix as ConfusionMatrix
from pipeline.metrics.confusion import ConfusionTable as ConfusionTable
from pipeline.metrics.curves import histogram as histogram
from pipeline.metrics.curves import one_side as one_side
from pipeline.metrics.curves import precision_recall_curve as precision_recall_curve
from pipeline.metrics.curves import roc_curve as roc_curve
from pipeline.metrics.names import make as make
from pipeline.metrics.names import name_of as name_of
from pipeline.metrics.names import named as named
from pipeline.metrics.names import names as names
from pipeline.metrics.names import stem_of as stem_of
from pipeline.metrics.per_class import F1 as F1
from pipeline.metrics.per_class import NPV as NPV
from pipeline.metrics.per_class import Accuracy as Accuracy
from pipeline.metrics.per_class import Dice as Dice
from pipeline.metrics.per_class import FBeta as FBeta
from pipeline.metrics.per_class import Hamming as Hamming
from pipeline.metrics.per_class import IoU as IoU
from pipeline.metrics.per_class import Precision as Precision
from pipeline.metrics.per_class import Recall as Recall
from pipeline.metrics.per_class import Specificity as Specificity
from pipeline.metrics.per_class import TopKAccuracy as TopKAccuracy
from pipeline.metrics.per_class import class_metric as class_metric
from pipeline.metrics.probabilities import NLL as NLL
from pipeline.metrics.probabilities import Brier as Brier
from pipeline.metrics.probabilities import MeanConfidence as MeanConfidence
from pipeline.metrics.ranking import aupr_trapezoid as aupr_trapezoid
from pipeline.metrics.ranking import auroc as auroc
from pipeline.metrics.ranking import average_precision as average_precision
from pipeline.metrics.ranking import fpr_at_tpr as fpr_at_tpr
from pipeline.metrics.ranking import full_spectrum as full_spectrum
from pipeline.metrics.ranking import ranking_metrics as ranking_metrics
from pipeline.metrics.ranking import ranks_of as ranks_of
from pipeline.metrics.ranking import tpr_at_fpr as tpr_at_fpr
from pipeline.metrics.scores import AUROC as AUROC
from pipeline.metrics.scores import AUPRTrapezoid as AUPRTrapezoid
from pipeline.metrics.scores import AveragePrecision as AveragePrecision
from pipeline.metrics.scores import DetectionAccuracy as DetectionAccuracy
from pipeline.metrics.scores import FPRAtTPR as FPRAtTPR
from pipeline.metrics.scores import MaxF1 as MaxF1
from pipeline.metrics.scores import Ranking as Ranking
from pipeline.metrics.scores import TPRAtFPR as TPRAtFPR
from pipeline.metrics.segmentation import ImageDice as ImageDice
from pipeline.metrics.segmentation import ImageGeneralisedDice as ImageGeneralisedDice
from pipeline.metrics.segmentation import ImageIoU as ImageIoU
from pipeline.metrics.segmentation import ImagePrecision as ImagePrecision
from pipeline.metrics.segmentation import ImageRecall as ImageRecall
from pipeline.metrics.segmentation import ImageTable as ImageTable
from pipeline.metrics.segmentation import image_numbers as image_numbers
from pipeline.metrics.selective import AURC as AURC
from pipeline.metrics.selective import AURRA as AURRA
from pipeline.metrics.selective import RiskCoverage as RiskCoverage
from pipeline.metrics.selective import RiskCoverageCurve as RiskCoverageCurve
from pipeline.metrics.whole import MCC as MCC
from pipeline.metrics.whole import BalancedAccuracy as BalancedAccuracy
from pipeline.metrics.whole import ExactMatch as ExactMatch
from pipeline.metrics.whole import FrequencyWeightedIoU as FrequencyWeightedIoU
from pipeline.metrics.whole import GeneralisedDice as GeneralisedDice
from pipeline.metrics.whole import Kappa as Kappa


def __getattr__(name: str) -> Any:
    if name != "Collection":
        raise AttributeError(f"module 'pipeline.metrics' has no attribute {name!r}")
    return importlib.import_module("pipeline.collection").Collection  # of a layer above this one
