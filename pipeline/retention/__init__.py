"""What old runs have left on the disk, and which of it nobody will look at again."""

from pipeline.retention.garbage import Found as Found
from pipeline.retention.garbage import Garbage as Garbage
from pipeline.retention.garbage import collect as collect
from pipeline.retention.garbage import find as find
from pipeline.retention.places import Place as Place
from pipeline.retention.places import place_of as place_of
