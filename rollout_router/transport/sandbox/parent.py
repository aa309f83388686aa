# SPDX-License-Identifier: Apache-2.0
"""End when the process that we serve has ended, without asking again and again (Linux).

It runs before the shim says that it is ready, so it does without signal and threading: importing
them costs more than the rest of the start. The threads end with the process.
"""

import _signal  # type: ignore[import-not-found]  # see above
import _thread
import os
import select
import sys

__all__ = ["terminate_with", "terminate_with_stdin"]

_SYS_PIDFD_OPEN = 434  # the same on all architectures; os.pidfd_open came with Python 3.9
_PR_SET_PDEATHSIG = 1


def terminate_with(pid: int) -> None:
    """Send SIGTERM to this process when process *pid* has ended.

    Raises:
        ProcessLookupError: it has ended already.
        OSError: this kernel cannot tell; nothing is watched.
    """
    try:
        descriptor = _pidfd(pid)
    except ProcessLookupError:
        raise
    except OSError:
        if pid != os.getppid():
            raise
        import ctypes  # noqa: PLC0415 - some small Python builds lack it

        # Second best: it also fires when the thread that started us ends.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _signal.SIGTERM)
        if pid != os.getppid():
            raise ProcessLookupError(f"process {pid} has ended") from None
        return
    _thread.start_new_thread(_wait, (descriptor,))


def terminate_with_stdin() -> None:
    """Send SIGTERM to this process when its standard input ends, or cannot be read any more.

    Raises:
        ProcessLookupError: there is none: it was closed when we started.
    """
    if sys.stdin is None:  # its number may be another file's by now
        raise ProcessLookupError("standard input is closed")
    _thread.start_new_thread(_drain, ())


def _pidfd(pid: int) -> int:
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    import ctypes  # noqa: PLC0415 - as above

    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(_SYS_PIDFD_OPEN, pid, 0)
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return descriptor


def _wait(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    os.kill(os.getpid(), _signal.SIGTERM)


def _drain() -> None:
    poll = select.poll()  # who shares it may have set it not to wait
    poll.register(0, select.POLLIN)
    while True:
        poll.poll()
        try:
            if not os.read(0, 4096):
                break
        except BlockingIOError:
            continue  # somebody else read it
        except OSError:
            break  # a terminal that is gone, or open for writing alone
    os.kill(os.getpid(), _signal.SIGTERM)
