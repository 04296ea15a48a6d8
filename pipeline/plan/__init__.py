"""The plan: what a pass reads, holds and takes, known and checked before the first byte is read."""

from pipeline.plan.hours import Span as Span
from pipeline.plan.hours import forecast as forecast
from pipeline.plan.memory import Part as Part
from pipeline.plan.memory import Projection as Projection
from pipeline.plan.memory import project as project
from pipeline.plan.memory import project_client as project_client
from pipeline.plan.memory import project_device as project_device
from pipeline.plan.passes import TASKS_LIMIT as TASKS_LIMIT
from pipeline.plan.passes import WINDOW as WINDOW
from pipeline.plan.passes import Pass as Pass
from pipeline.plan.passes import Pending as Pending
from pipeline.plan.passes import Work as Work
from pipeline.plan.passes import describe as describe
from pipeline.plan.passes import human as human
from pipeline.plan.passes import levels_in_a_task as levels_in_a_task
from pipeline.plan.refusal import check as check
from pipeline.plan.refusal import check_client as check_client
from pipeline.plan.stripes import Room as Room
from pipeline.plan.stripes import in_stripes as in_stripes
from pipeline.plan.stripes import pieces_of as pieces_of
from pipeline.plan.table import explain as explain
from pipeline.plan.table import parts_of as parts_of
from pipeline.plan.table import summary as summary
from pipeline.plan.table import wrapped as wrapped
