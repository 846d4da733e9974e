"""For `pytest -p hlserve_cluster.pytest_plugin`: the option `--context`, and the cluster that a suite may touch as a fixture."""

from collections.abc import Iterator

import pytest

from hlserve_cluster import full_profile, images, wheels
from hlserve_cluster.daemons import Daemons
from hlserve_cluster.errors import ClusterError
from hlserve_cluster.gpus import GPUS_PER_NODE
from hlserve_cluster.layout import Layout, state_directory
from hlserve_cluster.target import Target, choose


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--context`."""
    parser.addoption(
        "--context",
        default="",
        help="Context of your kubeconfig whose cluster the cluster tests may use; without it, the one of `make cluster-up`.",
    )


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Target]:
    """The cluster that was named, or ours with the images as they were last built.

    Ours is started if it is not up, and ended after the session if it was started here. A test that asks for it fails with
    instructions if there can be none.
    """
    name = str(request.config.getoption("--context"))
    layout = Layout(state_directory("full"))
    starts = not name and not Daemons(layout).known()
    try:
        if starts:
            full_profile.start(layout, gpus=GPUS_PER_NODE)
        if not name:
            images.load(layout, tuple(wheels.IMAGES))
        yield choose(name)
    except ClusterError as error:
        pytest.fail(str(error), pytrace=False)
    finally:
        if starts:
            full_profile.stop(layout)
