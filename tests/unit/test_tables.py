# SPDX-License-Identifier: Apache-2.0
import pytest

from rollout_router.tables import Table, markdown


def test_a_table_is_a_section_of_a_page() -> None:
    table = Table(title="Costs", columns=["what", "ms"], rows=[["a|b", "1"], ["c", "2"]])
    assert markdown(table) == ("## Costs\n\n| what | ms |\n| --- | --- |\n| a/b | 1 |\n| c | 2 |\n")


@pytest.mark.parametrize("row", [[], ["1"], ["1", "2", "3"]])
def test_a_row_with_another_number_of_cells_is_refused(row: list[str]) -> None:
    with pytest.raises(ValueError, match="Costs: not every row has 2 cells"):
        Table(title="Costs", columns=["what", "ms"], rows=[["a", "1"], row])
