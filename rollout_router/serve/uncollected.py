# SPDX-License-Identifier: Apache-2.0
"""Imported first by the process that workers are forked from: nothing is collected there.

What it imports stays, so that looking through it for garbage is in vain; it took a fifth of the
processor time. Each worker freezes what it was forked with and collects again, as the documentation
of ``gc.freeze`` says.
"""

import gc

__all__: list[str] = []

gc.disable()
