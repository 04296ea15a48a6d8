"""What differs between two runs: their numbers, and what may have moved them."""

from pipeline.comparing.differences import Comparison as Comparison
from pipeline.comparing.differences import Fact as Fact
from pipeline.comparing.differences import Number as Number
from pipeline.comparing.differences import compare as compare
from pipeline.comparing.rules import Rule as Rule
from pipeline.comparing.rules import rule_of as rule_of
