# SPDX-License-Identifier: Apache-2.0
import importlib
import sys
import traceback

import pytest

from rollout_router.transport.sandbox.sources import Sources

TEXTS = {
    "inmemory": "",
    "inmemory.inner": "def fail() -> None:\n    raise ValueError('a line of its own')\n",
}


def test_a_module_comes_from_its_text_and_its_traceback_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "meta_path", [Sources("/file", TEXTS), *sys.meta_path])
    for name in TEXTS:
        monkeypatch.delitem(sys.modules, name, raising=False)

    inner = importlib.import_module("inmemory.inner")

    with pytest.raises(ValueError, match="a line") as caught:
        inner.fail()
    said = "".join(traceback.format_exception(caught.value))
    assert 'File "/file/inmemory/inner.py", line 2, in fail' in said
    assert "raise ValueError('a line of its own')" in said
    for name in TEXTS:
        del sys.modules[name]


def test_what_is_not_held_is_left_to_others() -> None:
    assert Sources("/file", TEXTS).find_spec("inmemory.other") is None
