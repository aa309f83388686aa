# SPDX-License-Identifier: Apache-2.0
"""What is set in a process of its own: these thresholds cannot be read, nor taken back."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Mapping

import pytest

from rollout_router.serve import allocator

FREED = """
import os, resource
from rollout_router.serve.allocator import give_back_memory, keep_freed_memory
print(keep_freed_memory())
def faults():
    bytearray(b"x") * 8_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        bytearray(b"x") * 8_000_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults())
kept = [bytearray(b"x") * 100_000 for _ in range(400)]
pinned = kept[::40]
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
full = resident()
del kept
give_back_memory()
print(full - resident())
"""
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if name != "GLIBC_TUNABLES" and not name.startswith("MALLOC_")
}


def told(environment: Mapping[str, str]) -> tuple[str, int, int]:
    done = subprocess.run(
        [sys.executable, "-c", FREED], check=True, capture_output=True, text=True, env=environment
    )
    is_set, faults, given_back = done.stdout.split()
    return is_set, int(faults), int(given_back)


@pytest.mark.skipif(not os.confstr("CS_GNU_LIBC_VERSION"), reason="the thresholds are glibc's")
def test_freed_buffers_are_used_again_without_the_kernel_and_given_back_when_asked() -> None:
    is_set, faults, given_back = told(CLEAN)
    assert is_set == "True"
    assert given_back > 30_000_000  # of 40, some of it between buffers that are still used
    assert faults < 8 * 8_000_000 // os.sysconf("SC_PAGE_SIZE") // 10


@pytest.mark.parametrize("name", ["GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_"])
def test_an_operators_own_thresholds_stand(name: str) -> None:
    assert told({**CLEAN, name: ""})[0] == "False"


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(os, "confstr", lambda _: None)
    assert allocator.keep_freed_memory() is False
    allocator.give_back_memory()


def test_memory_is_given_back_again_and_again_beside_the_loop_until_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(allocator, "_GIVE_BACK_S", 0)

    async def run() -> None:
        twice = asyncio.Event()
        loop = asyncio.get_running_loop()

        def given_back() -> None:
            threads.append(threading.get_ident())
            if len(threads) == 2:
                loop.call_soon_threadsafe(twice.set)

        monkeypatch.setattr(allocator, "give_back_memory", given_back)
        async with asyncio.TaskGroup() as tasks:
            giving_back = tasks.create_task(allocator.keep_giving_back())
            await twice.wait()
            giving_back.cancel()

    asyncio.run(run())
    assert threading.get_ident() not in threads
