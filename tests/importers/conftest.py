"""Lets the tests of the importers share the module that writes exports."""

import sys
from pathlib import Path

# pytest imports test files one by one; the module they share must be found by its name.
sys.path.insert(0, str(Path(__file__).parent))
