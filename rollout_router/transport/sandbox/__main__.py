# SPDX-License-Identifier: Apache-2.0
"""``python -m rollout_router.transport.sandbox --gateway URL``."""

import sys

from rollout_router.transport.sandbox.start import main

sys.exit(main())
