"""What the README shows is what the project does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_the_python_snippets_run_one_after_the_other(tmp_path):
    snippets = [
        block for block in blocks("python") if not re.search("^class ", block, re.MULTILINE)
    ]
    assert len(snippets) == 4
    indented = "\n".join(f"    {line}" for block in snippets for line in block.splitlines())
    script = tmp_path / "snippets.py"
    script.write_text(f"def main():\n{indented}\n\n\nif __name__ == '__main__':\n    main()\n")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.99


def test_the_presets_shown_are_those_of_a_job():
    from pipeline.config import parse

    (entries,) = (block for block in blocks("yaml") if "preset:" in block)
    job = parse(f"name: shown\nstore: s.zarr\n{entries}", "shown")
    assert list(job.further_splits) == ["id/val"]


def test_she_is_shown_whole():
    (shown,) = (block for block in blocks("python") if "class SHE" in block)
    assert shown == (ROOT / "pipeline" / "detectors" / "she.py").read_text()


@pytest.mark.parametrize("name", ["demo.yaml", "swin_tokens.yaml"])
def test_the_shipped_jobs_are_valid(name):
    from pipeline.config import load

    assert load(ROOT / "configs" / name).detectors


def test_the_job_shown_can_be_planned(tmp_path):
    (job,) = (block for block in blocks("yaml") if "declare:" in block)
    assert yaml.safe_load(job)["name"] == "big"
    (tmp_path / "big.yaml").write_text(job)
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "plan", "big.yaml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "fit-pass1" in done.stdout
