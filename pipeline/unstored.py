"""Jobs without a store: rows of their sources go from the models straight into the statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.chunk import Split
from pipeline.cluster import Cluster
from pipeline.config import JobConfig, Source
from pipeline.engine import Finished, Streaming, Threads
from pipeline.errors import ConfigError
from pipeline.fill import EXTRACTED_FROM, data_of, manner_of, model_of, said_of
from pipeline.planning import Planned, Prepared, plan_of
from pipeline.streams import IN_PROCESS, refusal_of, second_reads, streaming_of, with_folders

STORED = "a store: run it without --no-store"
NOWHERE = "none: --no-store"
"""What a report says of the store."""


@contextmanager
def streams_of(config: JobConfig) -> Iterator[dict[str, Split]]:
    """Have the models of a job where they compute, and yield its sources as splits, read once.

    Raises :class:`ConfigError` for a job without sources, or one that is to run elsewhere.
    """
    if not config.sources:
        raise ConfigError("--no-store: the job names no sources, whose rows would be streamed")
    if config.resources.cluster not in IN_PROCESS or config.resources.dashboard:
        raise ConfigError(
            "--no-store: a stream is folded in the process of its model: resources.cluster is auto "
            f"or threads then, without a dashboard; or give {STORED}"
        )
    if filed := [source.split for source in config.sources if source.files]:
        raise ConfigError(
            f"--no-store: {filed[0]} comes from files, which are imported into {STORED}"
        )
    from pipeline.extract.model import Extractor  # torch is loaded only to extract

    extractors: dict[str, tuple[Any, Any]] = {}
    with ExitStack() as held:
        found = {}
        for source in config.sources:
            wanted = source.model.model_dump_json()
            if wanted not in extractors:
                model = model_of(source)
                extractors[wanted] = model, Extractor(model)
                held.enter_context(extractors[wanted][1].ready())
            found[source.split] = _stream(config, source, *extractors[wanted])
        yield found


def _stream(config: JobConfig, source: Source, model: Any, extractor: Any) -> Split:
    from pipeline.extract.data.datasets import as_rows
    from pipeline.extract.passing import Pass
    from pipeline.extract.source_stream import source_stream

    rows: Any = as_rows(data_of(source, model), getattr(model, "transform", None))
    manner = manner_of(source)
    said = {
        "source": rows.name,
        **getattr(rows, "attributes", {}),
        **extractor.attributes(),
        **manner.attributes,
        EXTRACTED_FROM: said_of(source),
    }
    classes = config.classes or 0
    return source_stream(
        Pass(extractor, manner, source.split, rows.name, classes=classes), rows,
        classes=classes, block_nbytes=config.block_nbytes, attributes=said,
    )  # fmt: skip


def prepared_over(config: JobConfig, streams: Mapping[str, Split]) -> Prepared:
    """Return what a job is made of, over streams instead of what a store may hold of them."""
    return Prepared(config, streams, dict(streams))


def plan(config: JobConfig, prepared: Prepared) -> tuple[Planned, Streaming]:
    """Return the plan of a job over streams, and what runs it; refuse a second read of any.

    One thread that folds must have the memory for it; further ones take what is left. That of the
    models is not planned.
    """
    asked = config.resources
    here = asked.model_copy(update={"cluster": "threads", "workers": 1})
    planned = plan_of(config.model_copy(update={"resources": here}), prepared)
    if again := second_reads(planned.passes, list(config.detectors)):
        raise refusal_of(again, STORED)
    planned.check()
    execute = streaming_of(
        planned.passes, planned.projections, planned.settings.shrink, asked.workers, asked.memory
    )
    more = f", with {execute.folders} more that fold" if execute.folders else ""
    return replace(
        planned,
        projections=with_folders(planned.projections, execute),
        resources=replace(planned.resources, why=f"that of the models{more}"),
    ), execute


@contextmanager
def cluster_of(
    planned: Planned, execute: Streaming, cache: Path, finished: Finished
) -> Iterator[Cluster]:
    """Yield what folds streams as they come, and splits of a store as usual."""
    others = Threads(1, cache, planned.settings, finished=finished)
    yield Cluster(planned.resources, replace(execute, finished=finished, others=others))
