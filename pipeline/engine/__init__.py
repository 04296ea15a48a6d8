"""The engine: walks one merge tree, whoever executes it, and drives procedures pass by pass.

:func:`run_serial` is the specification: a few lines that compute the same numbers over the same
tree as threads and dask, which only run its folds and merges elsewhere and keep them in files.
"""

from pipeline.engine.distributed import Dask as Dask
from pipeline.engine.left import known as known
from pipeline.engine.left import pending as pending
from pipeline.engine.left import pending_in_turn as pending_in_turn
from pipeline.engine.pin import Pin as Pin
from pipeline.engine.pin import Turns as Turns
from pipeline.engine.run import Known as Known
from pipeline.engine.run import nothing_known as nothing_known
from pipeline.engine.run import rehearse as rehearse
from pipeline.engine.run import run as run
from pipeline.engine.run import run_jobs as run_jobs
from pipeline.engine.serial import Execute as Execute
from pipeline.engine.serial import run_serial as run_serial
from pipeline.engine.settings import DEFAULTS as DEFAULTS
from pipeline.engine.settings import PARTIALS as PARTIALS
from pipeline.engine.settings import Finished as Finished
from pipeline.engine.settings import Say as Say
from pipeline.engine.settings import Settings as Settings
from pipeline.engine.settings import log as log
from pipeline.engine.streaming import Streaming as Streaming
from pipeline.engine.threads import Threads as Threads
from pipeline.engine.tree import tree as tree
from pipeline.jobs import Job as Job
from pipeline.jobs import Trace as Trace
