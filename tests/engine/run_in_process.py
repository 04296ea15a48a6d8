"""A job in processes of its own, to be killed: JOB LOG. Every fold is slow and told in LOG.

The block that ``POISONED`` names takes the process with it that folds it.
Worker processes run this top level again, so they fold slowly and tell as well. Lines of LOG:
``begin|fold|end THREAD BLOCK``; a block is in flight from begin to end, when its partials are kept.
"""

import os
import signal
import sys
import threading
import time

from pipeline.__main__ import main
from pipeline.engine import distributed, halving, threads

SECONDS = 0.02
LOG = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
fold, run_fold = halving.fold, threads.run_fold


def tell(what, block):
    os.write(LOG, f"{what} {os.getpid()}/{threading.get_ident()} {block.index}\n".encode())


def slow_fold(statistics, split, block, *rest, **options):
    tell("fold", block)
    if str(block.index) == os.environ.get("POISONED"):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(SECONDS)
    found = fold(statistics, split, block, *rest, **options)
    time.sleep(SECONDS)
    return found


def told_run_fold(split, step, *rest):
    (block,) = step.blocks
    tell("begin", block)
    read = run_fold(split, step, *rest)
    tell("end", block)
    return read


halving.fold = slow_fold
distributed.run_fold = threads.run_fold = told_run_fold

if __name__ == "__main__":
    sys.exit(main(["run", sys.argv[1], "-q"]))
