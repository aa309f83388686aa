# SPDX-License-Identifier: Apache-2.0
"""The public socket, as the supervisor hands it to its workers."""

import errno
import os

import pytest

from rollout_router.serve.supervisor import PortTaken, bind_public


def test_no_copy_of_the_public_socket_lets_a_worker_be_held_in_accept() -> None:
    with bind_public("127.0.0.1", 0) as listener, listener.dup():  # as for each worker
        assert not os.get_blocking(listener.fileno())


def test_a_port_that_cannot_be_bound_says_why() -> None:
    with bind_public("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortTaken, match=f"127.0.0.1:{port}: Address already") as refused:
            bind_public("127.0.0.1", port)
    assert refused.value.errno == errno.EADDRINUSE
