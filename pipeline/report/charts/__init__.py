"""Charts of metrics: from plain results to a figure that knows, as numbers, what it shows.

``save(chart, "matrix.svg")`` writes the figure, or a PNG, and ``matrix.json`` beside it.
"""

from pipeline.metrics.bands import Band as Band
from pipeline.report.charts.chart import Chart as Chart
from pipeline.report.charts.chart import png as png
from pipeline.report.charts.chart import save as save
from pipeline.report.charts.chart import svg as svg
from pipeline.report.charts.chosen import chart_of as chart_of
from pipeline.report.charts.chosen import drawable as drawable
from pipeline.report.charts.classes import ClassNumber as ClassNumber
from pipeline.report.charts.classes import class_bars as class_bars
from pipeline.report.charts.classes import numbers_of_classes as numbers_of_classes
from pipeline.report.charts.curves import precision_recall as precision_recall
from pipeline.report.charts.curves import risk_coverage as risk_coverage
from pipeline.report.charts.curves import roc as roc
from pipeline.report.charts.diagram import reliability as reliability
from pipeline.report.charts.matrix import confusion_matrix as confusion_matrix
from pipeline.report.charts.matrix import confusions_html as confusions_html
from pipeline.report.charts.matrix import confusions_text as confusions_text
from pipeline.report.charts.matrix import top_confusions as top_confusions
from pipeline.report.charts.scores import Threshold as Threshold
from pipeline.report.charts.scores import score_histograms as score_histograms
from pipeline.report.charts.scores import threshold_of as threshold_of
