"""A whole pass within a control group of exactly what was projected for it, without swap.

For threads the projection is that of the one process: the share of every thread, and what the
process holds to drive the job. For local processes it is that of all of them together: what is
projected for each worker, and for the process that drives them. The group counts cached pages of
the files that are read too, but gives those up before anything is refused.
"""

import json
import signal
import subprocess
import sys

import pytest
from cgroups import memory_cgroup
from fit_and_measure import WORKERS, job_of

from pipeline.bench.tokens import Recipe, make

pytestmark = pytest.mark.slow

RECIPE = Recipe(rows=8000, tokens=8, features=256, classes=100)
# The pass alone: `featfold run` would leave a fifth of the group unused.
FIT = """
import sys
from pathlib import Path

def main():
    from pipeline import planning
    from pipeline.cluster import Resources, open_cluster
    from pipeline.config import load
    from pipeline.engine import Settings, run_jobs

    config, allowed_nbytes = load(sys.argv[1]), int(sys.argv[2])
    prepared = planning.Prepared(config)
    resources = Resources(config.resources.cluster, config.resources.workers, allowed_nbytes, "")
    cache = Path(config.resources.cache)
    with open_cluster(resources, cache, Settings(0)) as cluster:
        outcomes = run_jobs(prepared.fits, cluster.execute)
    print(len(outcomes), "outcomes")

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("cgroup") / "s.zarr"
    make(path, RECIPE, 1, chunk_nbytes=2**19, block_nbytes=2**21)
    return path


def command(*arguments, enter=None):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True, text=True, preexec_fn=enter, timeout=200,
    )  # fmt: skip


def planned(job, *options, enter=None):
    """Return the exit code, the plan, and what was said of it."""
    done = command("-m", "pipeline", "plan", job, "--json", *options, enter=enter)
    return done.returncode, json.loads(done.stdout), done.stderr


def projection_of(plan):
    """Return the bytes per worker, and those of all processes together."""
    (one_pass,) = plan["passes"]
    each = one_pass["projected_nbytes"]
    return each, WORKERS * each + plan["client"]["projected_nbytes"]


@pytest.mark.parametrize("kind", ["threads", "local"])
def test_a_pass_completes_in_a_group_of_its_projection(store, tmp_path, kind):
    job = job_of(store, kind, tmp_path, "tokens")
    code, plan, told = planned(job)
    assert code == 0, told
    each, total = projection_of(plan)
    program = tmp_path / "fit.py"
    program.write_text(FIT)
    with memory_cgroup(total) as enter:
        done = command(program, job, each, enter=enter)
    assert done.returncode == 0, done.stderr
    assert "outcomes" in done.stdout
    assert RECIPE.nbytes > 0.1 * total


def test_a_group_that_is_far_too_small_ends_the_pass(store, tmp_path):
    """The limit of a group holds, so that to stay within it says something."""
    job = job_of(store, "threads", tmp_path, "tokens")
    each, total = projection_of(planned(job)[1])
    program = tmp_path / "fit.py"
    program.write_text(FIT)
    with memory_cgroup(total // 4) as enter:
        done = command(program, job, each, enter=enter)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["threads", "local"])
def test_seven_tenths_of_the_projection_are_refused(store, tmp_path, kind):
    job = job_of(store, kind, tmp_path, "tokens")
    each, total = projection_of(planned(job)[1])
    asked = planned(job, "--memory", int(0.7 * each))
    assert "--memory" in asked[2]
    with memory_cgroup(int(0.7 * total)) as enter:
        inside = planned(job, "--memory", "auto", enter=enter)
    for code, plan, told in (asked, inside):
        assert code == 3
        assert "refused before reading" in plan["refused"]
        assert "fixes it" in told
    assert not (tmp_path / "runs").exists()
