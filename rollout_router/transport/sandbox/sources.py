# SPDX-License-Identifier: Apache-2.0
"""Modules from their sources in memory: how the one file of a sandbox holds its packages.

The file begins with this text, so it imports nothing that the interpreter has not loaded already.
"""

from _frozen_importlib import ModuleSpec, spec_from_loader

TYPE_CHECKING = False  # as typing has it, without importing that
if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Sources"]


class Sources:
    """Finds and loads the modules whose sources it was given.

    Args:
        file: where tracebacks say that they stand.
        texts: the source of each module, by its full name; a name that others begin with is a
            package.
    """

    def __init__(self, file: str, texts: "dict[str, str]") -> None:
        self._file = file
        self._texts = texts

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> "ModuleSpec | None":
        """What importlib asks for; None of a module that is not here."""
        del path, target
        if name not in self._texts:
            return None
        return spec_from_loader(
            name,
            self,  # type: ignore[arg-type]  # a loader by its methods
            is_package=any(other.startswith(name + ".") for other in self._texts),
        )

    def create_module(self, spec: ModuleSpec) -> None:
        """A plain module will do."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run a module's source in it."""
        name = module.__name__
        place = f"{self._file}/{name.replace('.', '/')}.py"
        exec(compile(self._texts[name], place, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - importing is this

    def get_source(self, name: str) -> str:
        """For the lines of a traceback."""
        return self._texts[name]
