# SPDX-License-Identifier: Apache-2.0
"""What a harness puts into every request beside the conversation: model, instructions, tools."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["INSTRUCTIONS", "MODEL", "TOOLS"]

MODEL: Final = "scripted"

INSTRUCTIONS: Final = (
    "You work on a task in a sandbox. Look before you change anything, make one small change at a"
    " time, run what shows whether it worked, and say at the end what you did."
)


def _tool(name: str, description: str, **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        },
    }


_PATH: Final = {"type": "string", "description": "Path below the working directory."}

TOOLS: Final[Sequence[Mapping[str, Any]]] = (
    _tool(
        "run",
        "Run a command in the sandbox's shell and give its output, standard error included.",
        command={"type": "string", "description": "The command line."},
        timeout_s={"type": "integer", "description": "Seconds until it is ended.", "minimum": 1},
    ),
    _tool(
        "read_file",
        "Give the lines of a text file, each with its number in front.",
        path=_PATH,
        first_line={"type": "integer", "description": "Where to begin.", "minimum": 1},
        lines={"type": "integer", "description": "How many to give.", "minimum": 1},
    ),
    _tool(
        "edit_file",
        "Replace a passage of a text file that occurs in it exactly once.",
        path=_PATH,
        old={"type": "string", "description": "The passage as it stands."},
        new={"type": "string", "description": "What takes its place."},
    ),
    _tool(
        "search",
        "List the places where a regular expression matches, with file and line.",
        pattern={"type": "string", "description": "The regular expression."},
        path=_PATH,
    ),
)
"""In the form of Responses; Chat Completions has the same inside ``function``."""
