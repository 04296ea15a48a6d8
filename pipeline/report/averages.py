"""One results file out of those of several seeds: every number is the mean over them."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from pipeline.errors import DataError
from pipeline.report.results import check
from pipeline.report.schema import DetectorFacts, Results, Value

BOUNDS = ("value", "lower", "upper")


def averaged(seeds: Sequence[Results], **own: Any) -> Results:
    """Return the results of several runs of one job on the stores of several checkpoints.

    Numbers become means, with those of each seed beside them; time, bytes and passes are added up;
    memory is that of the run that held most. Figures, data and what is listed per class are
    those of the first seed. ``own`` replaces keys such as ``run``.

    Raises :class:`DataError` where the runs do not have the same detectors and sets.
    """
    first = seeds[0]
    for other in seeds[1:]:
        if _shape(other) != _shape(first):
            raise DataError(
                f"runs {first['run']} and {other['run']} have other detectors or sets; seeds are "
                "averaged over equal ones: give every store the same splits"
            )
    scores = [
        {**score, "metrics": _means([one["scores"][place]["metrics"] for one in seeds])}
        for place, score in enumerate(first["scores"])
    ]
    verdicts = [one["verdict"] for one in seeds]
    added = {key: sum(one[key] for one in verdicts) for key in ("seconds", "bytes_read", "passes")}
    stores = [one["provenance"]["store"] for one in seeds]
    provenance = {
        **first["provenance"],
        "store": ", ".join(stores),
        "checksums": {
            f"{store}: {split}": checksum
            for store, one in zip(stores, seeds, strict=True)
            for split, checksum in one["provenance"]["checksums"].items()
        },
    }
    return check(
        {
            **first,
            "verdict": {**verdicts[0], **added},
            "detectors": [
                _detector([one["detectors"][place] for one in seeds])
                for place in range(len(first["detectors"]))
            ],
            "scores": scores,
            "passes": [
                {**pass_, "name": f"seed {seed}, {pass_['name']}"}
                for seed, one in enumerate(seeds, 1)
                for pass_ in one["passes"]
            ],
            "comparisons": [],
            "classification": _classification(seeds),
            "memory": max((one["memory"] for one in seeds), key=_held),
            "conventions": [
                f"numbers are means over {len(seeds)} seeds, ± is their standard deviation; "
                "figures, data and what is listed per class are those of the first",
                *first["conventions"],
            ],
            "provenance": provenance,
            "seeds": [one["run"] for one in seeds],
            **own,
        }
    )


def _shape(results: Results) -> tuple[list[str], list[tuple[str, str]]]:
    scored = [(score["detector"], score["ood"]) for score in results["scores"]]
    return [detector["id"] for detector in results["detectors"]], scored


def _detector(seeds: Sequence[DetectorFacts]) -> DetectorFacts:
    """Return what is known of a detector; options and notes may differ where one was selected."""
    first = seeds[0]
    shared = [note for note in first["notes"] if all(note in one["notes"] for one in seeds)]
    apart = [
        f"seed {seed}: {note}"
        for seed, one in enumerate(seeds, 1)
        for note in one["notes"]
        if note not in shared
    ]
    names = dict.fromkeys(name for one in seeds for name in one["options"])
    options = {name: _joined([one["options"].get(name) for one in seeds]) for name in names}
    return {**first, "options": options, "notes": shared + apart}


def _joined(values: Sequence[Any]) -> Any:
    alike = all(one == values[0] for one in values)
    return values[0] if alike else " | ".join("default" if v is None else str(v) for v in values)


def _held(memory: Any) -> int:
    return int(memory["measured_nbytes"] or memory["projected_nbytes"])


def _means(seeds: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
    names = [name for name in seeds[0] if all(name in one for one in seeds)]
    return {name: _mean([one[name] for one in seeds]) for name in names}


def _mean(values: Sequence[Value]) -> dict[str, Any]:
    undefined = [one for one in values if one["value"] is None]
    if undefined:
        return dict(undefined[0])
    means = {
        key: fmean(one[key] for one in values)  # type: ignore[literal-required]
        for key in BOUNDS
        if all(one.get(key) is not None for one in values)
    }
    exact = all(one.get("exact", True) for one in values)
    return {**means, "exact": exact, "seeds": [one["value"] for one in values]}


def _classification(seeds: Sequence[Results]) -> dict[str, Any] | None:
    found = [one["classification"] for one in seeds]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    return {**known[0], "overall": _means([one["overall"] for one in known])}
