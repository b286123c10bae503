"""A cluster of two nodes, each with processors of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes of two processors; a test that loses one adds another."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.add_node(num_cpus=2, resources={"other": 1})
    yield made
    ray.shutdown()
    made.shutdown()
