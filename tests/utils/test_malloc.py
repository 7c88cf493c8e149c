"""Freed memory is kept where the C library can do so."""

import mmap
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, sys, torch
from nacre.utils.system import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def use():
    torch.ones(16 * 2**20).sum()   # 64 MiB, each page touched

for _ in range(10):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only the C library of Linux can be told")
@pytest.mark.skipif(
    HUGE_PAGES.exists() and "[always]" in HUGE_PAGES.read_text(),
    reason="huge pages are on for all: too few faults to count",
)
def test_memory_that_is_used_again_is_not_mapped_again():
    def pages_mapped(how: str) -> int:
        command = [sys.executable, "-c", PROGRAM, how]
        return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    pages = 5 * 64 * 2**20 // mmap.PAGESIZE
    assert pages_mapped("keep") < pages / 100 < pages / 4 < pages_mapped("return")
