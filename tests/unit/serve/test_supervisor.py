# SPDX-License-Identifier: Apache-2.0
"""The public socket, as the supervisor hands it to its workers."""

import os

from rollout_router.serve.supervisor import bind_public


def test_no_copy_of_the_public_socket_lets_a_worker_be_held_in_accept() -> None:
    with bind_public("127.0.0.1", 0) as listener, listener.dup():  # as for each worker
        assert not os.get_blocking(listener.fileno())
