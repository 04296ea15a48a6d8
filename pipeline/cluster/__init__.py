"""Where a job runs: threads of this process, processes here, or a dask scheduler elsewhere.

``auto`` takes threads for small inputs, where processes would cost more than they bring. Otherwise
it takes one process per GPU where GPUs can be used, or one per core. The memory allowed per worker,
on its host and on its GPU, is settled here too.
"""

from pipeline.cluster.opening import Cluster as Cluster
from pipeline.cluster.opening import open_cluster as open_cluster
from pipeline.cluster.reserved import BOOKKEEPING_NBYTES as BOOKKEEPING_NBYTES
from pipeline.cluster.reserved import reserved_nbytes as reserved_nbytes
from pipeline.cluster.resources import HERE as HERE
from pipeline.cluster.resources import Resources as Resources
from pipeline.cluster.settling import MEMORY_SHARE as MEMORY_SHARE
from pipeline.cluster.settling import check_kind as check_kind
from pipeline.cluster.settling import parse_nbytes as parse_nbytes
from pipeline.cluster.settling import settle as settle
