"""Runs `one_and_two` with the kinds of networks of these tests."""

import sys
from pathlib import Path

import models.kinds_of_networks  # noqa: F401  adds a kind
from models.conftest import import_foreign
from one_and_two import learn_all

import_foreign()
learn_all(Path(sys.argv[1]))
