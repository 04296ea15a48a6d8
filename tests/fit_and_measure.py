"""Fit over a store in a process of its own and say what was held: STORE KIND DIRECTORY POOL.

Prints one line of JSON: what the plan projects, and what the kernel saw.
"""

import json
import sys
from pathlib import Path

WORKERS = 2
JOB = """\
name: memory
store: {store}
detectors:
  - {{name: mahalanobis{pool}}}
  - {{name: relative_mahalanobis{pool}}}
  - she
  - kl_matching
fit: {{split: id/train}}
resources: {{cluster: {kind}, workers: {workers}, cache: {directory}/cache, memory: 1GiB}}
report: {{directory: {directory}/runs}}
"""


def job_of(store: str, kind: str, directory: str, pool: str) -> Path:
    """Write the job of such a fit."""
    path = Path(directory) / "job.yaml"
    option = f", pool: {pool}" if pool else ""
    text = JOB.format(store=store, kind=kind, directory=directory, pool=option, workers=WORKERS)
    path.write_text(text)
    return path


def main() -> None:
    # Not above: every worker process imports the top level of this file, and would hold it too.
    import pipeline as ff
    from pipeline import planning
    from pipeline.config import load
    from pipeline.machine import peak_rss_nbytes

    config = load(job_of(*sys.argv[1:]))
    planned = planning.plan(config)
    done = ff.run(config)
    memory = done.results["memory"]
    found = {
        "projected": memory["projected_nbytes"],
        "measured": memory["measured_nbytes"],
        "client_projected": planned.client.nbytes,
        "client_measured": peak_rss_nbytes(),
        "blocks": planned.passes[0].blocks,
        "read": done.results["verdict"]["bytes_read"],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
