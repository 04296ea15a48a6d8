"""Views: what statistics and scorers see of a chunk, computed once and remembered.

A view is a value, so equal views of two detectors share their work. Rows that must not count are
filtered by views too (``where``), never by dropping rows beforehand: no result depends on what
else is computed in the same pass.
"""

from pipeline.views.base import View as View
from pipeline.views.base import memoised as memoised
from pipeline.views.class_ids import AmongTop as AmongTop
from pipeline.views.class_ids import ArgMax as ArgMax
from pipeline.views.class_ids import AtLeast as AtLeast
from pipeline.views.class_ids import Labelled as Labelled
from pipeline.views.class_ids import Truth as Truth
from pipeline.views.columns import Columns as Columns
from pipeline.views.features import POOLS as POOLS
from pipeline.views.features import Linear as Linear
from pipeline.views.features import Pooled as Pooled
from pipeline.views.features import Projected as Projected
from pipeline.views.features import Stored as Stored
from pipeline.views.features import TokenCounts as TokenCounts
from pipeline.views.features import Tokens as Tokens
from pipeline.views.features import features as features
from pipeline.views.fourier import RandomFourier as RandomFourier
from pipeline.views.logits import Logits as Logits
from pipeline.views.logits import LogSoftmax as LogSoftmax
from pipeline.views.logits import LogSumExp as LogSumExp
from pipeline.views.logits import Predicted as Predicted
from pipeline.views.logits import softmax_outside_largest as softmax_outside_largest
from pipeline.views.logits import sum_of_others as sum_of_others
from pipeline.views.normalized import Normalized as Normalized
from pipeline.views.normalized import TokenMeans as TokenMeans
from pipeline.views.normalized import normalized as normalized
from pipeline.views.normalized import token_means as token_means
from pipeline.views.normalized import tokens_of as tokens_of
from pipeline.views.positive import OfClass as OfClass
from pipeline.views.positive import OneHot as OneHot
from pipeline.views.positive import Positive as Positive
from pipeline.views.principal import ReconstructionError as ReconstructionError
from pipeline.views.principal import SquaredLength as SquaredLength
from pipeline.views.rows import Both as Both
from pipeline.views.rows import Correct as Correct
from pipeline.views.rows import Every as Every
from pipeline.views.rows import Finite as Finite
from pipeline.views.rows import IsOOD as IsOOD
from pipeline.views.rows import Labels as Labels
from pipeline.views.rows import Outside as Outside
from pipeline.views.rows import Valid as Valid
from pipeline.views.stacked import AllFinite as AllFinite
from pipeline.views.stacked import Stacked as Stacked
from pipeline.views.token_mask import TokenMask as TokenMask
