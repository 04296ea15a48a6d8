"""``featfold doctor``: what it finds on this machine, and on ones that were spoilt on purpose."""

import errno
import fcntl
import json
import resource
import subprocess
import sys

from pipeline.cli import checks

NAMES = {
    "python", "packages", "import name", "dashboard", "object stores", "memory", "open files",
    "disk", "file lock", "gpu", "cupy", "dask-cuda",
}  # fmt: skip


def test_every_check_says_what_it_found(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("doctor", "--json")
    found = json.loads(out)
    assert {check["name"] for check in found["checks"]} >= NAMES
    assert all(check["found"] for check in found["checks"])
    assert all(check["remedy"] for check in found["checks"] if check["state"] != "ok")
    failed = [check for check in found["checks"] if check["state"] == "fail"]
    assert code == (1 if failed else 0)
    assert found["healthy"] is not failed
    assert "file lock" in err
    assert list(tmp_path.iterdir()) == []


def distribution(folder, name, version, top_level=""):
    """Make it look as if a distribution were installed in ``folder``."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "top_level.txt").write_text(top_level)


def test_another_owner_of_the_import_name_fails(shell, tmp_path):
    distribution(tmp_path, "pipeline", "0.1", "pipeline\n")
    code, out, _ = shell("doctor")
    assert code == 1
    assert "fail  import name" in out
    assert "pip uninstall pipeline" in out


def test_a_dask_cuda_of_2021_fails(shell, tmp_path):
    distribution(tmp_path, "dask-cuda", "0.18.0")
    code, out, _ = shell("doctor", "--json")
    assert code == 1
    (check,) = (c for c in json.loads(out)["checks"] if c["name"] == "dask-cuda")
    assert check["state"] == "fail"
    assert "0.18.0" in check["found"]
    assert "cuda12" in check["remedy"]


def test_few_open_files_are_a_warning():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        check = checks.check_open_files()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (check.state, check.remedy) == ("warn", "ulimit -n 4096")


def test_a_directory_that_is_gone_or_read_only_fails(tmp_path):
    proc = tmp_path / "proc"
    proc.symlink_to("/proc")  # nobody, not even root, can make files there
    assert checks.check_lock(proc).state == "fail"
    assert checks.check_disk(proc).state == "fail"


def test_no_gpu_library_is_loaded(tmp_path, environment):
    code = (
        "import sys; from pipeline.__main__ import main; main(['doctor']);"
        "assert not {'torch', 'cupy', 'zarr', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_lock_that_keeps_others_out(tmp_path):
    check = checks.check_lock(tmp_path)
    assert (check.state, check.found) == ("ok", f"works in {tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_keeps_nobody_out_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda handle, how: None)
    check = checks.check_lock(tmp_path)
    assert (check.state, check.found) == ("fail", "a lock does not keep others out")


def test_leases_in_place_of_refused_locks_are_a_warning(tmp_path, monkeypatch):
    def refused(handle, how):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refused)
    check = checks.check_lock(tmp_path)
    assert check.state == "warn"
    assert "flock is refused" in check.found
    assert "waits 35 s" in check.remedy
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_room_for_a_lock_fails(tmp_path):
    assert checks.check_lock(tmp_path / "none").state == "fail"
