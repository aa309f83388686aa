# SPDX-License-Identifier: Apache-2.0
"""The rules of the house, checked against the tree: imports, licences, sizes, laws, tests."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

import rollout_router
from rollout_router.errors import ANSWERS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rollout_router"
MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = [*MODULES, *(path for room in ("tests", "tools") for path in (ROOT / room).rglob("*.py"))]
LAWS = {
    *(f"c{n}" for n in range(1, 8)),
    *(f"r{n}" for n in range(1, 8)),
    *(f"h{n}" for n in range(1, 6)),
    *(f"d{n}" for n in range(1, 4)),
    *(f"s{n}" for n in range(1, 6)),
    *(f"f{n}" for n in range(1, 3)),
}

# What each room may import of the package, besides itself. The three rooms do not know one another.
SHARED = {"errors", "call", "asgi", "forked", "logs", "metrics", "printable"}
FIGURES = {"processes", "tables", "timings"}  # the product as it runs, and what is said of it
MEETING = {"history", "routing", "transport"}  # where they meet claims
ROOMS = {
    **{module: set[str]() for module in SHARED},
    "logs": {"metrics", "printable"},
    "metrics_files": set[str](),
    "processes": {"transport"},
    "tables": set[str](),
    "timings": set[str](),
    "claims": set[str](),
    "history": set[str](),
    "transport": {"errors", "forked"},
    "routing": {*SHARED, "claims", "history", "transport"},
    "gateway": SHARED,
    # The admin process is one more child of its supervisor.
    "serve": {*SHARED, "admin", "claims", "history", "metrics_files", "routing", "gateway"},
    "integrations": {"asgi", "checkpoint", "routing"},
    "checkpoint": {*SHARED, "claims", "operate"},
    "demo": {"processes", "transport"},
    "doctor": {
        "claims",
        "gateway",
        "metrics_files",
        "routing",
        "serve",
    },  # it looks at what a start would
    "harness": {"asgi", "claims", "errors", "gateway", *FIGURES, "transport"},
    "operate": {"claims"},
    # What commands print and the admin address sends is made in one place.
    "documents": {"claims", "operate"},
    # It watches and serves; how a connection is bounded it has from routing.
    "admin": {*SHARED, "claims", "documents", "metrics_files", "operate", "routing"},
    "bench": {
        *SHARED,
        "admin",
        "checkpoint",
        "claims",
        "demo",
        "gateway",
        "history",
        "operate",
        *FIGURES,
        "routing",
        "transport",
    },
}
ROOMS["cli"] = set(ROOMS)  # it stands before everything, and nothing knows it


def imports_of(path: Path) -> Iterator[str]:
    """Every absolute module that a file names, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "rollout_router":
            yield from (_named_by_the_root(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _named_by_the_root(name: str) -> str:
    """The module that ``from rollout_router import name`` gets."""
    if name in ROOMS:
        return f"rollout_router.{name}"
    return "rollout_router" if name == "__version__" else "rollout_router.routing"


def _files_of(room: str) -> list[Path]:
    module = PACKAGE / f"{room}.py"
    return [module] if module.exists() else sorted((PACKAGE / room).rglob("*.py"))


def _laws_of_tests() -> set[str]:
    texts = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.compile(r"^(?:\s*(?:async )?def )?test_((?:[a-z]\d_)+)", re.MULTILINE)
    return {law for text in texts for laws in named.findall(text) for law in laws[:-1].split("_")}


def test_every_room_says_what_it_may_import() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert set(ROOMS) == folders | modules


def test_names_that_come_from_the_package_root_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "sneaky.py"
    path.write_text(
        "import rollout_router.claims.record\n"
        "from rollout_router import history as h, gateway\n"
        "def late():\n"
        "    from rollout_router import __version__, install\n"
        "    from rollout_router.serve.config import ServeConfig\n"
    )
    assert set(imports_of(path)) == {
        "rollout_router",
        "rollout_router.claims.record",
        "rollout_router.gateway",
        "rollout_router.history",
        "rollout_router.routing",
        "rollout_router.serve.config",
    }


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_imports_only_the_rooms_it_may(room: str) -> None:
    for path in _files_of(room):
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] == "rollout_router" and len(parts) > 1 and parts[1] != room:
                assert parts[1] in ROOMS[room], f"{path.relative_to(ROOT)} imports {name}"


def test_what_goes_into_a_sandbox_imports_itself_alone() -> None:
    folder = PACKAGE / "transport" / "sandbox"
    for path in folder.rglob("*.py"):
        for name in imports_of(path):
            if name.startswith("rollout_router"):
                assert name.startswith("rollout_router.transport.sandbox"), f"{path.name}: {name}"
            else:
                assert name.split(".")[0] in sys.stdlib_module_names, f"{path.name}: {name}"


def test_only_the_command_line_prints() -> None:
    allowed = {PACKAGE / "cli", PACKAGE / "transport" / "sandbox"}
    for path in MODULES:
        if not any(folder in path.parents for folder in allowed):
            calls = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))
            names = {n.func.id for n in calls if isinstance(n.func, ast.Name)}
            assert "print" not in names, path.relative_to(ROOT)


def test_every_source_file_names_its_licence() -> None:
    line = "# SPDX-License-Identifier: Apache-2.0\n"
    assert [str(path) for path in SOURCES if not path.read_text().startswith(line)] == []


def test_a_module_can_be_read_in_one_go() -> None:
    lengths = {str(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {path: length for path, length in lengths.items() if length > 400} == {}


def test_every_law_has_tests_and_a_page_and_no_test_names_another() -> None:
    written = re.findall(
        r"^## ([A-Z]\d) ", (ROOT / "docs" / "invariants.md").read_text(), re.MULTILINE
    )
    assert {law.lower() for law in written} == LAWS
    assert set(_laws_of_tests()) == LAWS


def test_every_public_code_is_documented() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    for code in ANSWERS:
        assert f"`{code}`" in page


def test_the_version_is_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == rollout_router.__version__


def test_every_dependency_is_pinned_and_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {
        re.split(r"[<>=\[]", line)[0]
        for line in [*project["dependencies"], *chain.from_iterable(extras.values())]
    }
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].replace("_", "-") for line in pins}
    explained = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text()
    assert wanted <= pinned
    assert not [name for name in wanted if name not in explained]
