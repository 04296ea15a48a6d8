"""Metrics: values whose passes ask for one small statistic and end in exact numbers.

Each is a thin wrapper of a pure function of the statistic's result, which may be called alone.
"""

from pipeline.metrics.comparison import Scored as Scored
from pipeline.metrics.comparison import agreement as agreement
from pipeline.metrics.comparison import compared as compared
from pipeline.metrics.confusion import F1 as F1
from pipeline.metrics.confusion import Accuracy as Accuracy
from pipeline.metrics.confusion import BalancedAccuracy as BalancedAccuracy
from pipeline.metrics.confusion import ConfusionMatrix as ConfusionMatrix
from pipeline.metrics.confusion import ConfusionTable as ConfusionTable
from pipeline.metrics.confusion import Dice as Dice
from pipeline.metrics.confusion import IoU as IoU
from pipeline.metrics.confusion import Precision as Precision
from pipeline.metrics.confusion import Recall as Recall
from pipeline.metrics.confusion import accuracy as accuracy
from pipeline.metrics.confusion import balanced_accuracy as balanced_accuracy
from pipeline.metrics.confusion import class_metric as class_metric
from pipeline.metrics.curves import histogram as histogram
from pipeline.metrics.curves import one_side as one_side
from pipeline.metrics.curves import precision_recall_curve as precision_recall_curve
from pipeline.metrics.curves import roc_curve as roc_curve
from pipeline.metrics.ranking import AUROC as AUROC
from pipeline.metrics.ranking import AveragePrecision as AveragePrecision
from pipeline.metrics.ranking import FPRAtTPR as FPRAtTPR
from pipeline.metrics.ranking import Ranking as Ranking
from pipeline.metrics.ranking import auroc as auroc
from pipeline.metrics.ranking import average_precision as average_precision
from pipeline.metrics.ranking import fpr_at_tpr as fpr_at_tpr
from pipeline.metrics.ranking import full_spectrum as full_spectrum
from pipeline.metrics.ranking import ranking_metrics as ranking_metrics
from pipeline.metrics.ranking import ranks_of as ranks_of
