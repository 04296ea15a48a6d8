"""The laws that statistics, detectors and metrics obey, as base classes for pytest.

``class TestSHE(DetectorLaws)`` with a detector and a whole-array reference runs every law on it.
Needs the ``test`` extra, and in ``conftest.py`` the fixtures of :mod:`pipeline.testing.fixtures`.
"""

from pipeline.testing.compare import assert_close as assert_close
from pipeline.testing.compare import assert_same as assert_same
from pipeline.testing.detector_laws import DetectorLaws as DetectorLaws
from pipeline.testing.metric_laws import MetricLaws as MetricLaws
from pipeline.testing.recipes import CutSplit as CutSplit
from pipeline.testing.recipes import Data as Data
from pipeline.testing.recipes import labelled as labelled
from pipeline.testing.recipes import planted as planted
from pipeline.testing.statistic_laws import StatisticLaws as StatisticLaws
from pipeline.testing.strategies import partitions as partitions
