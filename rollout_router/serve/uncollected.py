# SPDX-License-Identifier: Apache-2.0
"""Imported first by the process that workers are forked from: nothing is collected there.

What it imports stays, so that looking through it for garbage is in vain; it took a fifth of the
processor time. Each worker freezes what it was forked with and collects again, as the documentation
of ``gc.freeze`` says.

It also makes room for what this process counts, before anything is imported that counts.
"""

import gc

from rollout_router.metrics_files import reserve

__all__: list[str] = []

gc.disable()
reserve()
