"""Statistics: frozen values that fold chunks of rows into small states, one file each."""

from pipeline.statistics.base import Statistic as Statistic
from pipeline.statistics.base import fields_of as fields_of
from pipeline.statistics.bin_counts import BinCounts as BinCounts
from pipeline.statistics.bin_counts import BinRows as BinRows
from pipeline.statistics.class_means import ClassMeans as ClassMeans
from pipeline.statistics.class_means import Means as Means
from pipeline.statistics.class_moments import ClassMoments as ClassMoments
from pipeline.statistics.class_moments import Moments as Moments
from pipeline.statistics.class_scatters import ClassScatters as ClassScatters
from pipeline.statistics.class_tails import ClassTails as ClassTails
from pipeline.statistics.class_tails import Tails as Tails
from pipeline.statistics.class_variances import ClassVariances as ClassVariances
from pipeline.statistics.class_variances import Variances as Variances
from pipeline.statistics.confusion_matrix import ConfusionMatrix as ConfusionMatrix
from pipeline.statistics.exact_ranks import ExactRanks as ExactRanks
from pipeline.statistics.exact_ranks import Ranks as Ranks
from pipeline.statistics.marginals import ClassCounts as ClassCounts
from pipeline.statistics.marginals import Marginals as Marginals
from pipeline.statistics.mean_probabilities import MeanProbabilities as MeanProbabilities
from pipeline.statistics.position_moments import PositionMoments as PositionMoments
from pipeline.statistics.scatters import Scatters as Scatters
from pipeline.statistics.second_moment import SecondMoment as SecondMoment
from pipeline.statistics.second_moment import Spread as Spread
from pipeline.statistics.sums import Sum as Sum
from pipeline.statistics.sums import Sums as Sums
from pipeline.statistics.tied_moments import TiedMoments as TiedMoments
