"""``python workflows/gpu_check OUT [PART ...] [--rehearse]``: every part, and one JSON of them."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import laws
import masks
import stories
import tokens
import workers
from sites import CannotShow, Site

from pipeline import arrays

PARTS = {
    "laws": laws.show,
    "tokens": tokens.show,
    "peer": tokens.beside_the_peer,
    "again": laws.repeated,
    "story": stories.show,
    "workers": workers.show,
    "masks": masks.show,
}


def main() -> int:
    """Show the parts that are asked for; 1 where one is not as it should be."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("out", type=Path)
    given.add_argument("parts", nargs="*", metavar="PART", default=[])
    given.add_argument("--rehearse", action="store_true", help="small, on the CPU")
    options = given.parse_intermixed_args()
    if unknown := sorted(set(options.parts) - set(PARTS)):
        given.error(f"no part {unknown[0]}; there are {', '.join(PARTS)}")
    site = _site(options.out, options.rehearse)
    if site is None:
        print("no GPU answers here: nothing was checked (--rehearse checks the script itself)")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"device": _described(site), "parts": {}}
    for name in options.parts or PARTS:
        found["parts"][name] = part = _shown(name, site)
        print(f"{name}: {json.dumps(part)}", flush=True)
        file = options.out / "gpu_check.json"
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(part["state"] == "failed" for part in found["parts"].values()))


def _site(out: Path, rehearse: bool) -> Site | None:
    if rehearse:
        return Site(arrays.Place("torch"), "cpu", out, rehearsal=True)
    import torch

    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    return Site(arrays.gpu_place(), "cuda", out, rehearsal=False)


def _described(site: Site) -> dict[str, Any]:
    import torch

    cuda = site.torch_device != "cpu"
    return {
        "name": torch.cuda.get_device_name() if cuda else platform.machine(),
        "memory_nbytes": torch.cuda.get_device_properties(0).total_memory if cuda else None,
        "library": site.place.library,
        "rehearsal": site.rehearsal,
        "versions": arrays.versions() | {"cuda": torch.version.cuda},
    }


def _shown(name: str, site: Site) -> dict[str, Any]:
    start = time.monotonic()
    own = replace(site, out=site.out / name)
    shutil.rmtree(own.out, ignore_errors=True)
    own.out.mkdir(parents=True)
    try:
        part = {"state": "shown", **PARTS[name](own)}
    except CannotShow as reason:
        part = {"state": "skipped", "why": str(reason)}
    except Exception as error:
        traceback.print_exc()
        part = {"state": "failed", "why": f"{type(error).__name__}: {error}"}
    return part | {"seconds": round(time.monotonic() - start, 2)}


if __name__ == "__main__":
    raise SystemExit(main())
