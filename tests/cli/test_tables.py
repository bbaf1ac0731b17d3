"""Tables on narrow terminals, and lists where extras are not installed."""

import sys

import pytest
from rich.markup import escape
from rich.table import Table

from demerit.cli import bars
from demerit.cli.listing import ABOUT_SOURCES, LISTS
from demerit.data.dataset import SOURCES
from demerit.models.loading import NOT_LOADED
from fakes.command import demerit_here


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("what", LISTS)
def test_lists_fit_without_cutting_words(monkeypatch: pytest.MonkeyPatch, what: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = demerit_here("list", what).stdout
    assert max(map(len, shown.splitlines())) <= width
    words = set(shown.split())
    missing = [w for lines in LISTS[what]().values() for line in lines for w in line.split() if w not in words]
    assert not missing


@pytest.mark.parametrize("width", [100, 60, 45, 36])
def test_wide_tables_keep_every_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    table = Table("model", "over_reward_rate", "with progress", "[bold]note[/bold]", title="t")
    table.add_row("constant (control)", "0.000 (0.000 to 0.000)", "", escape("a [red] wall of text that is long"))
    table.add_row("my-own-model", "1.000 (0.500 to 1.000)", "12", "short")
    bars.print_table(table)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    words = {"over_reward_rate", "constant", "(control)", "my-own-model", "[red]", "progress", "note", "12"}
    assert words <= set(shown.split())


def test_a_list_describes_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {name: (SOURCES.factory(name).__doc__ or "").splitlines()[0] for name in ABOUT_SOURCES}
    assert told == ABOUT_SOURCES
    for module in ("h5py", "openai"):
        monkeypatch.setitem(sys.modules, module, None)
    for module in ("demerit.data.formats.hdf5", "demerit.models.gvl.model"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert LISTS["sources"]()["hdf5"][:2] == [ABOUT_SOURCES["hdf5"], "Needs the extra hdf5 (docs/install.md)."]
    gvl = LISTS["models"]()["gvl"]
    assert (gvl[0], gvl[-1]) == (NOT_LOADED["gvl"].about, "Needs the extra chat (docs/install.md).")
