"""Blocks shared out among processes and machines: the same bits, whoever is killed."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from sources_of_tests import BLOCKS, Failing, Killing, Mixed, Numbers, same, unseeded

from pipeline.errors import ConfigError, DataError, FeatfoldError, IncompleteError, LockedError
from pipeline.extract.filling import Share, extract_split
from pipeline.store import Store
from pipeline.store.writer import SplitWriter


@pytest.fixture
def store(tmp_path):
    return Store.create(tmp_path / "f.zarr")


def extracted(store, source=None, model=None, name="id/train", **share):
    said = []
    done = extract_split(
        store, name, model or Mixed(), source or Numbers(50), classes=3, say=said.append,
        share=Share(**share), **BLOCKS,
    )  # fmt: skip
    return done, said


def whole(tmp_path):
    store = Store.create(tmp_path / "whole.zarr")
    extracted(store)
    return store.split("id/train", verify=True)


def test_processes_write_the_bits_of_one_though_one_is_killed_and_named(store, tmp_path):
    seen, said = [], []
    done = extract_split(
        store, "id/train", Mixed(), Killing(20, str(tmp_path / "killed")), classes=3,
        share=Share(workers=2), progress=lambda *at: seen.append(at), say=said.append, **BLOCKS,
    )  # fmt: skip
    assert (done.rows, done.written, done.missing) == (50, done.blocks, 0)
    assert done.blocks > 2
    assert seen[0] == (0, 50)
    assert seen[-1] == (50, 50)
    assert not list(store.path.parent.glob(".*filling*"))
    (line,) = said
    assert "was killed by SIGKILL within block" in line
    assert line.startswith("id/train: worker ")
    same(store.split("id/train", verify=True), whole(tmp_path))


class KilledAfterCommit(Mixed):
    """Kills its process once, between the commit of a block and the word of it."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.home = str(folder), os.getpid()

    def forward(self, x):
        if os.getpid() != self.home:
            _die_after_commit(Path(self.folder))
        return super().forward(x)


def _die_after_commit(folder):
    """Have this process die as soon as it has written a block, and before it says so."""
    plain = SplitWriter.write

    def write(self, *args, **options):
        plain(self, *args, **options)
        try:
            (folder / "killed").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    if plain.__module__ != __name__:
        SplitWriter.write = write


def test_a_worker_that_is_killed_after_its_commit_fails_nothing(store, tmp_path):
    seen = []
    done = extract_split(
        store, "id/train", KilledAfterCommit(tmp_path), Numbers(50), classes=3,
        share=Share(workers=2), progress=lambda *at: seen.append(at), **BLOCKS,
    )  # fmt: skip
    assert (tmp_path / "killed").exists()
    assert (done.missing, seen[-1]) == (0, (50, 50))
    same(store.split("id/train", verify=True), whole(tmp_path))


def test_a_block_that_kills_two_workers_is_an_error_and_the_others_are_kept(store, tmp_path):
    source = Killing(49)
    with pytest.raises(FeatfoldError, match=r"and so was another one within block \d+ \(rows 4"):
        extracted(store, source, workers=2)
    with pytest.raises(IncompleteError):
        store.split("id/train")
    done, _ = extracted(store)
    assert 1 <= done.written < done.blocks
    same(store.split("id/train", verify=True), whole(tmp_path))


def test_what_a_worker_raises_is_raised(store):
    before = set(psutil.Process().children())  # of clusters that other tests share
    with pytest.raises(DataError, match="row 30 is gone"):
        extracted(store, Failing(50), workers=2)
    left = set(psutil.Process().children()) - before
    assert not [child for child in left if "spawn_main" in " ".join(child.cmdline())]


def test_workers_that_make_another_model_are_refused(store):
    with pytest.raises(DataError, match=r"weights_sha256 is '\w+' in a worker, and '\w+' in"):
        extracted(store, model=unseeded()[0], workers=2, make=unseeded)
    assert not list((store.path / "id/train").rglob("block-*"))


def test_what_cannot_be_sent_is_refused(store):
    class Local(Numbers):
        pass

    with pytest.raises(ConfigError, match="cannot be sent to other processes"):
        extracted(store, Local(50), workers=2)


def test_shares_fill_a_split_side_by_side(store, tmp_path):
    with store.lock("id/train", (2, 3)):
        first, _ = extracted(store, part=(1, 3))
        assert 0 < first.written < first.blocks
        assert first.missing == first.blocks - first.written
        with pytest.raises(LockedError):
            extracted(store)
        for part in ((2, 3), (1, 2)):  # the latter has blocks in common with 2/3
            with pytest.raises(LockedError):
                extracted(store, part=part)
    second, _ = extracted(store, part=(2, 3), workers=2)
    third, _ = extracted(store, part=(3, 3))
    assert (third.missing, first.written + second.written + third.written) == (0, first.blocks)
    same(store.split("id/train", verify=True), whole(tmp_path))


def test_damaged_blocks_alone_are_written_again(store, tmp_path):
    extracted(store)
    files = sorted(p for p in (store.path / "id/train/features/c").rglob("*") if p.is_file())
    torn, gone = files[1], files[-1]
    torn.write_bytes(torn.read_bytes()[:-7])
    gone.unlink()
    before = {path: path.stat().st_mtime_ns for path in files[2:-1]}
    unchanged, _ = extracted(store)
    assert (unchanged.written, unchanged.rewritten) == (0, 0)
    done, said = extracted(store, verify=True)
    assert (done.written, done.rewritten) == (0, 2)
    assert [" is damaged and written again" in line for line in said] == [True, True]
    same(store.split("id/train", verify=True), whole(tmp_path))
    touched = {path for path, then in before.items() if path.stat().st_mtime_ns != then}
    assert len(touched) < len(before)


def test_a_damaged_block_behind_a_missing_one_is_written_again(store, tmp_path):
    extracted(store, part=(2, 2))
    first, *_ = sorted(p for p in (store.path / "id/train/ids/c").rglob("*") if p.is_file())
    first.write_bytes(first.read_bytes()[:-7])
    done, _ = extracted(store, part=(2, 2), verify=True)
    assert (done.written, done.rewritten) == (0, 1)
    extracted(store, part=(1, 2))
    same(store.split("id/train", verify=True), whole(tmp_path))


def test_workers_end_with_the_process_that_started_them(store, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys, time
            sys.path[:0] = {sys.path!r}
            from sources_of_tests import BLOCKS, Mixed, Numbers
            from pipeline.extract.filling import Share, extract_split
            from pipeline.store import Store

            class Slow(Numbers):
                def read(self, start, stop):
                    time.sleep(1 if start else 0)
                    return super().read(start, stop)

            def progress(done, rows):
                print(done, flush=True)

            if __name__ == "__main__":
                extract_split(Store.open({str(store.path)!r}), "id/train", Mixed(), Slow(50),
                              classes=3, batch_rows=5, share=Share(workers=2),
                              progress=progress, **BLOCKS)
            """
        )
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as process:
        for line in process.stdout:
            if int(line) > 0:
                break
        else:
            raise AssertionError("it ended before it had begun")
        workers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    done, _ = extracted(store)
    assert done.missing == 0
    same(store.split("id/train", verify=True), whole(tmp_path))
