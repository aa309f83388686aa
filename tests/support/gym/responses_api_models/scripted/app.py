# SPDX-License-Identifier: Apache-2.0
"""A model server for NeMo Gym, routed by the one call, whose calls the test's control can hold.

The path of this file is what Gym makes of its configuration. A call reports to the socket
``TEST_CONTROL`` what it was given, waits for an order, and answers the same to the same body.
``/scripted`` and ``/ng-control`` are ``support.app``, which does what the order says.
"""

import hashlib
import json
import os
from typing import Any

from fastapi import Request
from nemo_gym.base_responses_api_model import SimpleResponsesAPIModel
from nemo_gym.openai_utils import NeMoGymChatCompletion, NeMoGymResponse
from nemo_gym.server_utils import is_nemo_gym_fastapi_entrypoint
from support.app import app as told
from support.app import next_order

from rollout_router.integrations.nemo_gym import route_rollouts

ROUTE_ALWAYS = "TEST_ROUTE_ALWAYS"


class Scripted(SimpleResponsesAPIModel):  # type: ignore[misc]  # Gym is not there for the checker
    ray_enabled = False

    def setup_webserver(self) -> Any:
        app = super().setup_webserver()
        app.mount("/scripted", told)
        app.mount("/ng-control", told)
        return route_rollouts(self, app, route_always=ROUTE_ALWAYS in os.environ)

    async def responses(self, request: Request, body: Any) -> Any:  # noqa: ARG002 - Gym passes both by name
        text = await _answer(request)
        message = {
            "id": f"msg_{text}",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
        document = {
            "id": f"resp_{text}",
            "object": "response",
            "created_at": 0,
            "model": "scripted",
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
            "output": [message],
        }
        return NeMoGymResponse.model_validate(document)

    async def chat_completions(self, request: Request, body: Any) -> Any:
        """With token ids, as the engine of a policy gives them."""
        text = await _answer(request)
        turns = len(body.messages)
        message = {
            "role": "assistant",
            "content": text,
            "prompt_token_ids": list(range(turns)),
            "generation_token_ids": [turns],
            "generation_log_probs": [0.0],
        }
        document = {
            "id": f"chatcmpl-{text}",
            "object": "chat.completion",
            "created": 0,
            "model": "scripted",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        }
        return NeMoGymChatCompletion.model_validate(document)


async def _answer(request: Request) -> str:
    """What this call says, once the control lets it."""
    body = await request.body()
    await next_order(request.scope, body)
    return hashlib.sha256(json.dumps(json.loads(body)).encode()).hexdigest()[:12]


if __name__ == "__main__":
    Scripted.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = Scripted.run_webserver()
