"""For `pytest -p hlserve_cluster.pytest_plugin`: the option `--context`, and the cluster that a suite may touch as a fixture."""

import pytest

from hlserve_cluster.errors import ClusterError
from hlserve_cluster.target import Target, choose


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--context`."""
    parser.addoption(
        "--context",
        default="",
        help="Context of your kubeconfig whose cluster the cluster tests may use; without it, the one of `make cluster-up`.",
    )


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Target:
    """The cluster that was named, or ours; a test that asks for it fails with instructions if there is none."""
    try:
        return choose(str(request.config.getoption("--context")))
    except ClusterError as error:
        pytest.fail(str(error), pytrace=False)
