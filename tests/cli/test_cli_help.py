"""The first things people type, and what they cost."""

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "dask", "distributed", "zarr", "matplotlib", "cupy", "numpy", "pydantic")


@pytest.mark.parametrize(
    "code", ["import pipeline", "from pipeline.__main__ import main; main(['--help'])"]
)
def test_import_and_help_load_nothing_heavy(code):
    listed = (
        f"import sys; {code}; print(*sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", listed], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert done.stderr.strip() == ""


def test_help_lists_the_verbs_and_the_exit_codes(cli):
    code, out, _ = cli("--help")
    assert code == 0
    verbs = ["demo", "extract", "plan", "run", "report", "inspect", "export", "doctor"]
    places = [out.index(f"\n  {verb} ") for verb in verbs]
    assert places == sorted(places)
    for line in ("0    done", "2    wrong usage", "3    refused", "4    input", "130  interrupted"):
        assert line in out


@pytest.mark.parametrize(
    "verb", ["demo", "extract", "plan", "run", "report", "inspect", "export", "doctor"]
)
def test_every_verb_explains_itself(cli, verb):
    code, out, _ = cli(verb, "-h")
    assert code == 0
    assert f"featfold {verb}" in out
    for option in ("--json", "--quiet", "--verbose"):
        assert option in out


def test_version(cli):
    code, out, _ = cli("--version")
    assert code == 0
    assert out.startswith("featfold 0.")


def test_a_mistyped_verb_is_suggested(shell):
    code, out, err = shell("plna")
    assert (code, out) == (2, "")
    assert "no such verb 'plna': did you mean 'plan'? known: demo, " in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Usage: featfold"),
        (["run"], "Missing argument 'JOB.yaml'"),
        (["plan"], "--synthetic SHAPE"),
        (["plan", "a.yaml", "b.yaml"], "unexpected extra argument"),
        (["run", "a.yaml", "--memry", "1GB"], "--memory"),
        (["run", "a.yaml", "--workers"], "requires an argument"),
    ],
)
def test_wrong_usage_ends_with_2(cli, arguments, words):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_a_missing_job_ends_with_4(shell, verb):
    code, out, err = shell(verb, "none.yaml")
    assert (code, out) == (4, "")
    assert err == "error: none.yaml: there is no such file; give the YAML of a job\n"


def test_an_invalid_job_ends_with_2_and_names_the_place(shell, tmp_path):
    (tmp_path / "job.yaml").write_text("name: x\nstore: s\ndetectors: [msq]\n")
    code, out, err = shell("run", "job.yaml")
    assert (code, out) == (2, "")
    assert "job.yaml:3:13 detectors[0]: unknown detector 'msq': did you mean 'msp'?" in err
    assert "Traceback" not in err


def test_the_public_names_are_found_when_they_are_used():
    import pipeline as ff

    assert callable(ff.fit)
    assert ff.run.__module__ == "pipeline.job"
    assert ff.Store.__name__ == "Store"
    assert ff.detectors.Mahalanobis().covariance == "ridge"
    assert {"fit", "score", "evaluate", "run", "Store", "detectors", "metrics"} <= set(dir(ff))
    with pytest.raises(AttributeError, match="did you mean 'evaluate'"):
        ff.evalute  # noqa: B018


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("featfold pl", ["plan"]),
        ("featfold run --mem", ["--memory"]),
        ("featfold bench fit s --detectors vim,maha", ["vim,mahalanobis", "vim,mahalanobis_odin"]),
        ("featfold run j --set detectors.0=vr", ["detectors.0=vra"]),
        ("featfold plan j --set resour", ["resources"]),
    ],
)
def test_a_shell_completes_verbs_options_detectors_and_keys(words, expected):
    environment = {**os.environ, "_FEATFOLD_COMPLETE": "bash_complete", "COMP_WORDS": words}
    environment["COMP_CWORD"] = str(words.count(" "))
    done = subprocess.run(
        [sys.executable, "-m", "pipeline"], capture_output=True, text=True, timeout=60,
        env=environment,
    )  # fmt: skip
    assert [line.partition(",")[2] for line in done.stdout.split()] == expected


def test_the_help_says_how_completion_is_switched_on(cli):
    assert "_FEATFOLD_COMPLETE=bash_source featfold" in cli("--help").out
