"""A tiny compact network for tests of models."""

import shutil
from pathlib import Path

import pytest

from demerit.models.compact.engine import Engine
from fakes.tiny_network import make_network


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny trained network. Do not write into it."""
    return make_network(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def engine(network: Path) -> Engine:
    """The same, loaded."""
    return Engine.load(network, threads=2)


@pytest.fixture
def copied(network: Path, tmp_path: Path) -> Path:
    """A copy of the network that may be changed."""
    return Path(shutil.copytree(network, tmp_path / "mine"))
