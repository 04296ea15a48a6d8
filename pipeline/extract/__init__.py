"""From a model and a source of inputs to stored features.

Sources and factories are here without torch; :mod:`pipeline.extract.model` runs the model.
"""

from pipeline.extract.sources import Batch, Source, Stream, build, mean_pixel, resolve

__all__ = ["Batch", "Source", "Stream", "build", "mean_pixel", "resolve"]
