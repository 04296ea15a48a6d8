"""The engine: one tree, one read, lockstep passes, results that do not depend on the company."""

import os
from dataclasses import dataclass

import dask
import numpy as np
import pytest

from pipeline import detectors, engine
from pipeline.chunk import Schema
from pipeline.content import Const, value
from pipeline.engine import Dask, Job, Threads, Trace, rehearse, run, run_jobs, tree
from pipeline.errors import ConfigError, DataError, FeatfoldError
from pipeline.heads import LinearHead
from pipeline.inputs import with_head
from pipeline.procedure import On, Rows, Scored
from pipeline.statistics import ClassMoments, ExactRanks, Marginals
from pipeline.store import ArraySplit
from pipeline.views import Labels, Stored

K, D = 4, 6


def rows(n=230, seed=0, name="id/train", **options):
    rng = np.random.default_rng(seed)
    y = rng.integers(-1, K, n)
    x = rng.standard_normal((n, 3, D)) + 2 * np.eye(K, D)[y][:, None, :]
    options = {"block_rows": 20, "chunk_rows": 7} | options
    return ArraySplit(x.astype("f4"), y, classes=K, name=name, **options)


@value
class Asks:
    """A procedure that asks for the given requests, pass by pass, and returns all results."""

    passes_: tuple[object, ...]

    def passes(self, schema: Schema):
        found = []
        for number, request in enumerate(self.passes_):
            results = yield {f"r{number}": request}
            found.append(results[f"r{number}"])
        return tuple(found)


def flat(level, node):
    """Return the siblings that a node of this level holds already, or the node as one of them."""
    return node if depth(node) == level else (node,)


def depth(node):
    return 1 + max(map(depth, node)) if isinstance(node, tuple) else 0


def level_by_level(leaves):
    """The grouping that the tree must have, written the other way round."""
    while len(leaves) > 1:
        leaves = [tuple(leaves[i : i + 8]) for i in range(0, len(leaves), 8)]
        leaves = [group[0] if len(group) == 1 else group for group in leaves]
    return leaves[0]


@pytest.mark.parametrize(
    "count", [1, 2, 7, 8, 9, 15, 16, 63, 64, 65, 71, 72, 73, 511, 512, 513, 600]
)
def test_the_tree_groups_eight_neighbours_level_by_level(count):
    made = tree(
        iter(range(count)), lambda level, left, right: flat(level, left) + flat(level, right)
    )
    assert made == level_by_level(list(range(count)))


def test_no_more_than_one_node_of_each_level_waits():
    alive = most = 0

    def leaves():
        nonlocal alive, most
        for leaf in range(512):
            alive += 1
            most = max(most, alive)
            yield leaf

    def join(level, left, right):
        nonlocal alive
        alive -= 1
        return left

    tree(leaves(), join)
    assert most == 1 + 3


def test_threads_give_the_bits_of_the_serial_run():
    procedures = {name: detectors.load(name)() for name in ("mahalanobis", "relative_mahalanobis")}
    split = rows()
    serial = run(procedures, split)
    for workers in (1, 2, 4):
        assert run(procedures, split, Threads(workers)) == serial


def test_dask_processes_give_the_bits_of_the_serial_run(dask_client, tmp_path):
    procedures = {"mahalanobis": detectors.load("mahalanobis")()}
    split = rows()
    assert run(procedures, split, Dask(dask_client, tmp_path)) == run(procedures, split)


def test_tasks_are_grouped_by_pass_on_the_dashboard(dask_client, tmp_path):
    seen = []
    execute = Dask(dask_client, tmp_path)

    def watched(pass_):
        seen.append(execute(pass_))
        return seen[-1]

    keys = dask_client.run_on_scheduler(_keep_groups)
    run({"moments": Asks((ClassMoments(),))}, rows(), watched)
    keys = dask_client.run_on_scheduler(_groups_seen)
    assert {"fit-pass1", "merge-pass1"} <= set(keys)


def _keep_groups(dask_scheduler):
    dask_scheduler.featfold_groups = set()
    original = dask_scheduler.new_task

    def new_task(*args, **kwargs):
        made = original(*args, **kwargs)
        dask_scheduler.featfold_groups.add(str(made.group.name))
        return made

    dask_scheduler.new_task = new_task


def _groups_seen(dask_scheduler):
    return sorted(dask_scheduler.featfold_groups)


def test_chunk_rows_change_no_bit():
    wanted = None
    for chunk_rows in (1, 7, 19, 20):
        found = run({"m": Asks((ClassMoments(),))}, rows(chunk_rows=chunk_rows))["m"][0]
        wanted = wanted or found
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_passes_are_those_of_the_longest_procedure():
    trace = Trace()
    split = rows()
    jobs = {
        "short": Job(Asks((ClassMoments(),)), {"train": (split,)}),
        "long": Job(Asks((ClassMoments(), Marginals(of=Labels()))), {"train": (split,)}),
        "same": Job(Asks((ClassMoments(),)), {"train": (split,)}),
    }
    run_jobs(jobs, trace=trace)
    assert [[len(work.statistics) for work in pass_.works] for pass_ in trace.passes] == [[1], [1]]
    assert trace.passes[0].asked_by[ClassMoments()] == ("short", "long", "same")
    assert [trace.passes_of(name) for name in jobs] == [1, 2, 1]


def test_a_known_or_empty_request_costs_no_pass():
    trace = Trace()
    split = rows()
    asked = Asks((ClassMoments(), ClassMoments()))
    found = run_jobs({"twice": Job(asked, {"train": (split,)})}, trace=trace)["twice"]
    assert len(trace.passes) == 1
    assert np.array_equal(found[0].scatter, found[1].scatter)


def test_the_in_distribution_side_is_counted_once_for_all_sets():
    trace = Trace()
    id_test = scores(100, "id/test", 0)
    near, far = scores(50, "ood/near/a", 1), scores(60, "ood/far/b", 2)
    ranks = Asks((ExactRanks(of=Stored("scores")),))
    jobs = {
        "near": Job(ranks, {"train": (id_test, near)}),
        "far": Job(ranks, {"train": (id_test, far)}),
    }
    found = run_jobs(jobs, trace=trace)
    (pass_,) = trace.passes
    assert [work.split.name for work in pass_.works] == ["id/test", "ood/near/a", "ood/far/b"]
    assert found["near"][0].negatives.sum() == found["far"][0].negatives.sum() == 100
    assert found["far"][0].positives.sum() == 60


def scores(n, name, seed):
    values = np.random.default_rng(seed).standard_normal(n).round(1)
    return ArraySplit(arrays={"scores": values}, name=name, classes=0, block_rows=9, chunk_rows=4)


def test_rows_come_back_in_order_from_every_executor(dask_client, tmp_path):
    split = rows()
    scorer = run({"m": detectors.load("mahalanobis")()}, split)["m"]
    asked = {"scores": Asks((Rows(Scored(scorer)),))}
    wanted = run(asked, split)["scores"][0].array()
    assert wanted.shape == (230,)
    for execute in (Threads(2), Threads(2, tmp_path), Dask(dask_client, tmp_path)):
        assert np.array_equal(run(asked, split, execute)["scores"][0].array(), wanted)
    assert not list(tmp_path.rglob("*.npz"))  # rows in memory leave nothing behind


def test_roles_choose_the_split():
    train, val = rows(seed=1), rows(seed=2, name="id/val")
    asked = Asks((ClassMoments(), On("val", ClassMoments())))
    on_train, on_val = run({"m": asked}, {"train": train, "val": val})["m"]
    assert on_train.rows != on_val.rows
    with pytest.raises(ConfigError, match="m needs a 'val' split; given: train"):
        run({"m": asked}, train)


def test_no_usable_row_names_split_procedures_and_filter():
    x = np.ones((20, D))
    split = ArraySplit(x, np.full(20, -1), classes=K)
    with pytest.raises(DataError, match=r"id/train: no usable row for a, b: none of 20 rows"):
        run({"a": Asks((ClassMoments(),)), "b": Asks((ClassMoments(),))}, split)


@pytest.mark.parametrize("execute", [engine.run_serial, Threads(2)])
def test_values_that_are_not_finite_name_split_rows_and_columns(execute):
    split = rows()
    features = split._arrays["features"]
    row = int(np.flatnonzero(split._arrays["labels"] >= 0)[30])
    features[row, 1, 4] = np.nan
    with pytest.raises(DataError, match=rf"id/train: .*features .*first row {row}, columns \[4\]"):
        run({"m": Asks((ClassMoments(),))}, split, execute)


def test_skipping_rows_that_are_not_finite_equals_a_split_without_them():
    split = rows()
    features, labels = split._arrays["features"].copy(), split._arrays["labels"]
    features[5, 1, 4], features[100, 0, 0] = np.nan, np.inf
    damaged = ArraySplit(features, labels, classes=K, block_rows=20, chunk_rows=7)
    voided = labels.copy()
    voided[[5, 100]] = -1
    clean = ArraySplit(split._arrays["features"], voided, classes=K, block_rows=20, chunk_rows=7)
    asked = Asks((ClassMoments(),))
    trace = Trace()
    jobs = {"m": Job(asked, {"train": (damaged,)})}
    found = run_jobs(jobs, skip_nonfinite=True, trace=trace)["m"][0]
    wanted = run({"m": asked}, clean)["m"][0]
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    ((used, read),) = trace.rows_used.values()
    assert (used, read) == (wanted.rows, 230)


@value
class Breaks(ClassMoments.__mro__[0]):  # type: ignore[misc]
    """A statistic with a bug."""

    def absorb(self, state, chunk):
        raise RuntimeError("boom")


@pytest.mark.parametrize("where", ["serial", "threads", "dask"])
def test_a_bug_in_a_statistic_names_statistic_split_and_rows(where, request, tmp_path):
    execute = {"serial": engine.run_serial, "threads": Threads(2)}.get(where)
    if execute is None:
        execute = Dask(request.getfixturevalue("dask_client"), tmp_path)
    with pytest.raises(
        FeatfoldError, match=r"Breaks.* failed on rows \d+-\d+ of id/train: Runtime"
    ):
        run({"m": Asks((Breaks(),))}, rows(), execute)


def test_dask_hands_out_no_further_block_once_one_has_failed(dask_client, tmp_path):
    split = rows(n=2000)
    features = split._arrays["features"]
    features[np.flatnonzero(split._arrays["labels"] >= 0)[0]] = np.nan
    folded = []
    execute = Dask(dask_client, tmp_path, finished=lambda pass_, work, block: folded.append(block))
    with pytest.raises(DataError, match="not finite"):
        run({"m": Asks((ClassMoments(),))}, split, execute)
    assert len(folded) < len(split.blocks) / 2


def test_a_rehearsal_reads_nothing_and_knows_the_passes():
    @dataclass(frozen=True)
    class Unreadable:
        schema: Schema
        name = "id/train"
        is_ood = False
        blocks = rows().blocks
        chunk_rows = 7

        def identity(self, block, fields):
            return None

        def read(self, block, fields):
            raise AssertionError("a plan must not read")

    split = Unreadable(rows().schema)
    procedures = {name: detectors.load(name)() for name in ("mahalanobis", "relative_mahalanobis")}
    jobs = {name: Job(made, {"train": (split,)}) for name, made in procedures.items()}
    passes, outcomes = rehearse(jobs)
    assert [pass_.name for pass_ in passes] == ["fit-pass1"]
    assert set(outcomes) == set(procedures)


@pytest.mark.parametrize("bias", [0.0, -300.0])
def test_a_rehearsal_asks_nothing_of_the_data_of_a_known_head(bias):
    weight = np.random.default_rng(0).standard_normal((300, 32))
    weight[:, :8] = 0  # blind to what marks the classes of made-up rows
    head = LinearHead(Const(weight), Const(np.full(300, bias)))
    x = np.zeros((9, 32))
    split = ArraySplit(x, np.arange(9), classes=300)
    named = {name: with_head(detectors.load(name)(), head) for name in ("she", "vim")}
    passes, outcomes = rehearse({n: Job(d, {"train": (split,)}) for n, d in named.items()})
    assert len(passes) == 2
    assert set(outcomes) == {"she", "vim"}
    with pytest.raises(DataError):
        run(named, split)


def test_running_twice_gives_the_same_bits():
    asked = {"m": detectors.load("mahalanobis")()}
    assert run(asked, rows()) == run(asked, rows())


@value
class Kills(ClassMoments.__mro__[0]):  # type: ignore[misc]
    """A statistic that takes its worker with it."""

    def absorb(self, state, chunk):
        os._exit(1)


def test_a_block_that_kills_its_workers_is_named(tmp_path):
    from distributed import Client, LocalCluster

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        LocalCluster(1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
        pytest.raises(FeatfoldError, match=r"fit-pass1: block000\d of id/train ended its worker 2"),
    ):
        run({"m": Asks((Kills(),))}, rows(), Dask(client, tmp_path))
