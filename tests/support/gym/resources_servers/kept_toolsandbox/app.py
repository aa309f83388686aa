# SPDX-License-Identifier: Apache-2.0
"""The entry of a ToolSandbox server whose environments are kept, as a gym has it.

The path of this file is what Gym makes of its configuration.
"""

from nemo_gym.server_utils import is_nemo_gym_fastapi_entrypoint

from rollout_router.integrations.toolsandbox import KeptToolSandbox

if __name__ == "__main__":
    KeptToolSandbox.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = KeptToolSandbox.run_webserver()
