"""Laws of memory: what is declared is enough, and not wildly more than what is used."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pipeline import arrays
from pipeline.chunk import Chunk
from pipeline.content import constants_in
from pipeline.fold import closure
from pipeline.testing import drive, recipes
from pipeline.testing.fake_device import PLACE, fake_device
from pipeline.testing.recipes import Data, Shape

SLACK_NBYTES = 192 * 1024
"""What is counted beside arrays: Python objects, and the buffers in which numpy casts."""
LARGE_NBYTES = 4 * 2**20
KERNELS_NBYTES = 3 * 2**20
"""What kernels hold on a device, whatever the rows."""
TRIALS = 3
OPEN_CHUNKS = 5
GENEROUS = 3
"""What may be declared, in multiples of what is used, once that is large."""


class MemoryLaws:
    """Memory of states, temporaries and views of a ``statistic``, over a grid of shapes."""

    statistic: Any
    state_may_grow = False
    """Whether the state grows with the rows, up to its declared bound."""
    memory_shapes: tuple[Shape, ...] = recipes.SHAPES

    @property
    def device_shapes(self) -> tuple[Shape, ...]:
        """Shapes that are tried on a device: fewer, as one of the standard alone is slow."""
        return self.memory_shapes[1:3]

    def rows(self) -> Data:
        """Rows the laws are checked on."""
        return recipes.labelled(rows=80)

    def shaped(self, shape: Shape) -> Data:
        """Return rows of a shape that the statistic can absorb."""
        return shape.data

    def test_state_size_is_known_and_does_not_depend_on_the_rows(self) -> None:
        rows = self.rows()
        many = rows.take(np.arange(8 * rows.rows) % rows.rows)
        sizes = [
            arrays.nbytes(drive.partials(self.statistic, data.cut())[0]) for data in (rows, many)
        ]
        opened = arrays.nbytes(self.statistic.empty(rows.schema))
        declared = self.statistic.state_nbytes(rows.schema)
        assert max(*sizes, opened) <= declared
        assert self.state_may_grow or (sizes == [sizes[0]] * 2 and 0.5 * declared <= opened)

    def test_an_open_state_is_no_larger_than_declared(self) -> None:
        for shape in self.memory_shapes:
            fault = self.open_undeclared(self.shaped(shape))
            assert not fault, f"{shape}: {fault}"

    def test_work_memory_is_declared(self) -> None:
        self.assert_right(self.work_undeclared)

    def test_views_declare_their_memory(self) -> None:
        self.assert_right(self.views_undeclared)

    def test_a_device_holds_no_more_than_declared(self) -> None:
        for shape in self.device_shapes:
            if "float16" not in shape:  # which the device lacks
                fault = self.device_undeclared(self.shaped(shape))
                assert not fault, f"{shape}: {fault}"

    def assert_right(self, check: Callable[[Data], str]) -> None:
        """Fail unless what is declared is right for every shape."""
        for shape in self.memory_shapes:
            # Other threads of the process allocate too.
            faults = [check(self.shaped(shape))]
            while faults[-1] and len(faults) < TRIALS:
                faults.append(check(self.shaped(shape)))
            assert not faults[-1], f"{shape}: {faults[-1]}"

    def open_undeclared(self, data: Data) -> str:
        """Say how much more than declared a state holds while a block is open."""
        schema = data.take(np.arange(OPEN_CHUNKS * data.rows) % data.rows).schema
        declared, state = self.statistic.state_nbytes(schema), self.statistic.empty(schema)
        for _ in range(OPEN_CHUNKS):
            state = self.statistic.absorb(state, next(_chunks(data, self.statistic.fields)))
            if arrays.nbytes(state) > declared:
                return f"{arrays.nbytes(state)} are held, {declared} are declared"
        return ""

    def work_undeclared(self, data: Data) -> str:
        """Say which of absorb, close and merge does not keep to what is declared."""
        schema, statistic = data.schema, self.statistic
        state_nbytes = statistic.state_nbytes(schema)
        absorbing = statistic.work_nbytes(schema, data.rows)
        # A merge holds its result beside both inputs, and so does the end of a block.
        closing = statistic.work_nbytes(schema, 0) + state_nbytes
        states = []
        for chunk in _chunks(data, statistic.fields):
            for view in statistic.views:
                view(chunk)
            state, absorbed = peak(statistic.absorb, statistic.empty(schema), chunk)
            state, closed = peak(statistic.close, state)
            states.append(state)
        _, merged = peak(statistic.merge, *states)
        used = {"absorb": absorbed, "close": closed, "merge": merged}
        declared = {"absorb": absorbing, "close": closing, "merge": closing}
        for step in used:
            if used[step] > declared[step] + SLACK_NBYTES:
                return f"{step} takes {used[step]}, {declared[step]} are declared"
        most = max(absorbed, merged - state_nbytes)
        if data.rows > 1 and not self.state_may_grow and absorbing > _generous(most):
            return f"absorb takes {most}, {absorbing} are declared"
        return ""

    def device_undeclared(self, data: Data) -> str:
        """Say how much more than declared a device holds while a chunk is absorbed, or closed."""
        schema, statistic = data.schema, self.statistic
        views = dict.fromkeys(closure(statistic.views))
        reading = schema.row_nbytes(statistic.fields) * data.rows
        declared = {
            "views": reading + sum(view.nbytes(schema, data.rows) for view in views),
            "states": 2 * statistic.state_nbytes(schema),
            "work": max(statistic.work_nbytes(schema, rows) for rows in (0, data.rows)),
            "constants": sum(constant.array.nbytes for constant in constants_in(statistic)),
        }
        with fake_device() as device:
            state = arrays.map_arrays(PLACE.put, statistic.empty(schema))
            ((chunk,),) = drive.chunks(data.cut(), statistic.fields, PLACE)
            for view in statistic.views:
                view(chunk)
            state = statistic.absorb(state, chunk)
            del chunk
            statistic.close(state)
        if device.peak_nbytes() <= sum(declared.values()) + KERNELS_NBYTES:
            return ""
        return f"{device.peak_nbytes()} bytes are held, declared are {declared}"

    def views_undeclared(self, data: Data) -> str:
        """Say which view does not keep to what it declares, beside those it is made of."""
        for view in dict.fromkeys(closure(self.statistic.views)):
            chunk = next(_chunks(data, self.statistic.fields))
            for part in closure([view]):
                if part != view:
                    part(chunk)
            declared = view.nbytes(data.schema, data.rows)
            _, used = peak(view, chunk)
            if not used - SLACK_NBYTES <= declared <= _generous(used):
                return f"{view} takes {used}, {declared} are declared"
        return ""


def _generous(used: int) -> int:
    return max(GENEROUS * used, LARGE_NBYTES)


def _chunks(data: Data, fields: frozenset[str]) -> Iterator[Chunk]:
    """Yield all rows as one chunk, twice."""
    twice = data.take(np.arange(2 * data.rows) % data.rows).cut([[data.rows]] * 2)
    for (chunk,) in drive.chunks(twice, fields):
        yield chunk


def peak(call: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    """Return the result of a call and the most memory that it held at once."""
    tracemalloc.start()
    try:
        outcome = call(*arguments)
        return outcome, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
