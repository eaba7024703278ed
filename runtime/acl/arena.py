"""Device memory allocator: blocks of driver allocations, under a limit."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Callable
from dataclasses import field

from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError

# AscendCL's requirements for memory managed by the caller: blocks start at 64 bytes (128 in older releases), and the
# device may read up to 32 bytes past a tensor.
ALIGNMENT, BEHIND = 128, 32
POWER_OF_TWO, AS_REQUESTED = "kNextPowerOfTwo", "kSameAsRequested"
STRATEGIES = (POWER_OF_TWO, AS_REQUESTED)
_FIRST_REGION = 1 << 20


class OutOfMemory(RunError):
    """The arena cannot grow any further."""


@dataclass(frozen=True)
class Block:
    """Device memory in use: a request for `size` bytes, at `address`."""

    address: int
    size: int


@dataclass
class _Region:
    """Memory from the driver; `free` are the unused spans (start, end), sorted and never adjacent."""

    base: int
    size: int
    free: list[tuple[int, int]] = field(default_factory=list)

    @property
    def unused(self) -> bool:
        return self.free == [(0, self.size)]


class Arena:
    """Blocks of device memory. Thread-safe.

    Attributes:
        limit: maximum bytes taken from the driver, None for no limit.
        strategy: `kNextPowerOfTwo`: the arena at least doubles when it grows, so it grows rarely;
            `kSameAsRequested`: it grows by the requested size.
        reserved: bytes taken from the driver.
        used: bytes of the blocks in use, rounded up.
        peak: largest `reserved` so far.
    """

    def __init__(
        self,
        malloc: Callable[[int], int],
        free: Callable[[int], None],
        limit: int | None = None,
        strategy: str = POWER_OF_TWO,
    ) -> None:
        self._malloc, self._free = malloc, free
        self.limit, self.strategy = limit, strategy
        self._regions: list[_Region] = []
        self._blocks: dict[int, tuple[_Region, int]] = {}
        self._lock = threading.RLock()
        self.reserved = self.used = self.peak = 0

    def take(self, size: int) -> Block:
        """A block of at least `size` bytes, aligned to 128.

        Raises:
            OutOfMemory: OCC0511 the limit or the device does not allow it.
        """
        need = -(-(max(size, 1) + BEHIND) // ALIGNMENT) * ALIGNMENT
        with self._lock:
            region, start, end = self._best_fit(need) or self._grow(need, size)
            region.free.remove((start, end))
            if end - start > need:
                insort(region.free, (start + need, end))
            address = region.base + start
            self._blocks[address] = region, need
            self.used += need
            return Block(address, size)

    def give(self, block: Block) -> None:
        """Free a block."""
        with self._lock:
            region, need = self._blocks.pop(block.address)
            start = block.address - region.base
            end = start + need
            for span in [s for s in region.free if s[1] == start or s[0] == end]:
                region.free.remove(span)
                start, end = min(start, span[0]), max(end, span[1])
            insort(region.free, (start, end))
            self.used -= need

    def _best_fit(self, need: int) -> tuple[_Region, int, int] | None:
        fits = [(b - a, k, a, b) for k, r in enumerate(self._regions) for a, b in r.free if b - a >= need]
        if not fits:
            return None
        _, k, start, end = min(fits)
        return self._regions[k], start, end

    def _grow(self, need: int, asked: int) -> tuple[_Region, int, int]:
        """A new region; unused ones are first returned to the driver, if that makes enough room."""
        size = self._allowed(self._wanted(need), need)
        if size is None:
            self.trim()
            size = self._allowed(need, need)
        if size is None:
            raise OutOfMemory(
                "OCC0511",
                f"{asked} bytes of device memory do not fit: `npu_mem_limit` is {self.limit}, {self.used} are in use",
                "raise `npu_mem_limit`; when it is below the size of the model, build with the same `npu_mem_limit`",
            )
        base, size = self._region_memory(size, need)
        region = _Region(base, size, [(0, size)])
        self._regions.append(region)
        self.reserved += region.size
        self.peak = max(self.peak, self.reserved)
        return region, 0, region.size

    def _wanted(self, need: int) -> int:
        if self.strategy == AS_REQUESTED:
            return need
        return 1 << (max(need, self.reserved, _FIRST_REGION) - 1).bit_length()

    def _allowed(self, size: int, need: int) -> int | None:
        if self.limit is None:
            return size
        room = (self.limit - self.reserved) // ALIGNMENT * ALIGNMENT
        return min(size, room) if room >= need else None

    def _region_memory(self, size: int, need: int) -> tuple[int, int]:
        """Memory of `size` bytes; of the minimum needed if the device has no more, and nothing unused is left."""
        try:
            return self._malloc(size), size
        except RunError as e:
            if e.code != "OCC0511":
                raise
        self.trim()
        try:
            return self._malloc(need), need
        except RunError as e:
            raise OutOfMemory(e.code, e.message, e.help) from None

    def trim(self) -> None:
        """Return regions without used blocks to the driver.

        Raises:
            RunError: the driver rejects one.
        """
        with self._lock:
            for region in [r for r in self._regions if r.unused]:
                self._regions.remove(region)
                self.reserved -= region.size
                self._free(region.base)

    def close(self) -> None:
        """Return all memory to the driver.

        Raises:
            RunError: the first region that the driver rejects, after all were tried.
        """
        first: RunError | None = None
        with self._lock:
            regions, self._regions = self._regions, []
            self._blocks.clear()
            self.reserved = self.used = 0
        for region in reversed(regions):
            try:
                self._free(region.base)
            except RunError as e:
                first = first or e
        if first is not None:
            raise first
