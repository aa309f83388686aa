# SPDX-License-Identifier: Apache-2.0
"""nginx and HAProxy as processes of the benchmark."""

from pathlib import Path

import pytest

from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.proxies import Proxy


def test_a_proxy_that_does_not_start_is_told_with_what_it_said(folder: Path) -> None:
    with pytest.raises(BenchFailed, match="nginx did not start"):
        Proxy("nginx", "/bin/false", folder / "nginx", [])
