# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is under way when agent or environment die: at each operation, in each phase.

A cell is a session at one of its operations, a checkpoint in one of its phases, and a SIGKILL
(support/faults/controlled.py). Then either the controller ends what it began, or it is killed too
and its budget ends. However that is, compared with the session that nothing happened to:

* The session does the same, each effect once, and has the same result and receipt.
* The gate is closed while the checkpoint holds it, and open in the end.
* The checkpoint is abandoned, and nothing has its name, or what was published is whole. In another
  deployment it goes on from where it was cut, and ends with the same bytes; or its result is
  delivered again and nothing runs; or it was acknowledged and is no more.
"""

import json
from collections.abc import Callable, Iterator
from itertools import product
from typing import Final

import pytest
from support.faults.seen import Seen, check, playing
from support.faults.table import SAMPLES, Stop

OPERATIONS: Final = {  # one of each kind, by its number
    "seed": "1",
    "model": "2",
    "call": "3",
    "text": "8",
    "close": "9",
    "verify": "10",
}
STANDS: Final[dict[str, Stop]] = {  # where nothing is in hand; it goes on to a closed gate
    "open": ["agent", "started", "open"],
    **{name: ["agent", "begun", number] for name, number in OPERATIONS.items()},
    "complete": ["agent", "begun", "complete"],
    "deliver": ["agent", "told", "deliver"],
    "acknowledge": ["agent", "started", "acknowledge"],
}
IN_HAND: Final[dict[str, list[Stop]]] = {
    "open": [["agent", "unwritten", "open", "stand"]],
    **{
        name: [["outside" if number in SAMPLES else "environment", "replied", number, "stand"]]
        for name, number in OPERATIONS.items()
    },
    "complete": [["agent", "unwritten", "complete", "stand"]],
    "deliver": [["agent", "unwritten", "open", "pass"], ["agent", "unwritten", "open", "stand"]],
    "acknowledge": [["agent", "unwritten", "acknowledge", "stand"]],  # nothing else is left of it
}
CUT: Final = {  # kind and number of rows of what is kept of it, where it stands
    "open": [],
    **{name: [["open", int(number) - 1]] for name, number in OPERATIONS.items()},
    "complete": [["open", 10]],
    "deliver": [["completed", 0]],
    "acknowledge": [["completed", 0]],
}
CUT_LATER: Final = {  # where what was in hand is done first
    "open": [["open", 0]],
    **{name: [["open", int(number)]] for name, number in OPERATIONS.items()},
    "complete": [["completed", 0]],
    "deliver": [["completed", 0]],
    "acknowledge": [["acknowledged", 0]],
}
PHASES: Final = {  # as they are said to be then, and after a budget that ended
    "preparing": ("preparing", "abandoned"),
    "prepared": ("prepared", "abandoned"),
    "records written": ("prepared", "abandoned"),
    "linked": ("committed", "resumed"),
    "committed": ("committed", "resumed"),
    "restored": ("restored", "resumed"),
    "resumed": ("resumed", "resumed"),
}
LEFT_OUT: Final = {("resumed", "expire"): "a checkpoint that was resumed has no budget"}
EVERYDAY: Final[set[tuple[str, ...]]] = {
    ("verify", "preparing", "environment", "resume"),
    ("close", "linked", "agent", "expire"),
    ("seed", "restored", "environment", "resume"),
}
CELLS: Final[list[tuple[str, ...]]] = [
    cell
    for cell in product(STANDS, PHASES, ("agent", "environment"), ("resume", "expire"))
    if (cell[1], cell[3]) not in LEFT_OUT
]


Play = Callable[..., Seen]


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    """Plays one cell; see support/faults/controlled.py."""
    with playing("support.faults.controlled") as told_to:

        def play(*cell: str, mutant: str | None = None) -> Seen:
            row, phase, whom, ending = cell or (None,) * 4
            stops = []
            if row is not None:
                stops = IN_HAND[row] if phase == "preparing" else [[*STANDS[row], "stand"]]
            if phase in ("records written", "linked"):
                stops = [*stops, ["controller", "control", phase, "stand"]]
            told = {"loop": "tools", "mutant": mutant, "clocks_s": [0], "stops": stops}
            return told_to({**told, "row": row, "phase": phase, "whom": whom, "ending": ending})

        yield play


@pytest.fixture(scope="module")
def calm(play: Play) -> Seen:
    """What is seen of a session that nothing happens to."""
    seen = play()
    check(seen, seen)
    assert json.loads(seen["receipts"][0][1])["reward"] == 1.0
    return seen


def check_restored(seen: Seen, calm: Seen) -> None:
    """What was published went on from where it stood, or was delivered again (O6, O8)."""
    fresh, kept = seen["fresh"], seen["kept"]
    assert fresh["ended"] == ["resumed", True]
    match kept[0][0] if kept else "none":
        case "none":
            check(fresh, calm)
        case "open":
            [[_, receipt, recorded, revisions]] = kept
            assert receipt is None
            assert seen["deliverable"] == []
            first = revisions[0] - 1 if revisions else 0  # its making there is the last effect here
            more = [one for one in SAMPLES if int(one) > recorded]
            check(fresh, {**calm, "effects": calm["effects"][first:], "outside": more})
        case "completed":
            assert seen["deliverable"] == [calm["receipts"][0][0]]
            check(fresh, {**calm, "effects": [], "outside": [], "journal": {"rows": []}})
            assert fresh["outside"] == []
        case "acknowledged":
            assert seen["deliverable"] == []
            assert fresh["refusals"] == ["result_acknowledged"]
            assert [fresh["effects"], fresh["outside"], fresh["receipts"]] == [[], [], []]


def check_cell(seen: Seen, calm: Seen, cell: tuple[str, ...]) -> None:
    """Everything that must be true of a cell."""
    row, phase, whom, ending = cell
    check(seen, calm)
    assert set(seen["refusals"]) <= {"environment_unreachable"}  # while it was to be forgotten
    then, expired = PHASES[phase]
    struck = seen["fresh"] if phase == "restored" else seen
    assert struck["struck"] == [then, then == "resumed"]  # O5
    assert seen["ended"] == [expired if ending == "expire" else "resumed", True]
    if seen["ended"][0] == "abandoned":
        assert seen["kept"] is None
        assert set(seen["archives"]) <= {"manifest_missing"}
        return
    assert seen["archives"] == [None]
    cut = CUT_LATER if (phase, whom) == ("preparing", "environment") else CUT
    assert [[kind, rows] for kind, _, rows, _ in seen["kept"]] == cut[row]
    check_restored(seen, calm)


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(
            cell,
            id="-".join(cell).replace(" ", "-"),
            marks=[] if cell in EVERYDAY else [pytest.mark.long],
        )
        for cell in CELLS
    ],
)
def test_a_session_and_its_checkpoint_survive_a_death_in_any_phase(
    play: Play, calm: Seen, cell: tuple[str, ...]
) -> None:
    check_cell(play(*cell), calm, cell)


MUTANTS: Final = {
    "no gate": ("call", "prepared", "environment", "resume"),
    "never ahead": ("call", "preparing", "agent", "resume"),
    "epochs of another store": ("text", "committed", "agent", "resume"),
    "no result carried": ("deliver", "committed", "agent", "resume"),
}


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_matrix_notices_a_guard_that_is_missing(play: Play, calm: Seen, mutant: str) -> None:
    cell = MUTANTS[mutant]
    check_cell(play(*cell), calm, cell)
    with pytest.raises(AssertionError):
        check_cell(play(*cell, mutant=mutant), calm, cell)
