"""Statistics: frozen values that fold chunks of rows into small states, one file each."""

from pipeline.statistics.base import Statistic as Statistic
from pipeline.statistics.class_moments import ClassMoments as ClassMoments
from pipeline.statistics.class_moments import Moments as Moments
