"""Where a report is to be written is looked at before the work."""

from pathlib import Path

import pytest

from dflash2_core.cli.writing import require_place, write
from dflash2_core.errors import Dflash2Error
from tests.core.cli.test_generate import dflash2


def test_a_report_that_has_no_place_is_refused_before_anything_is_asked() -> None:
    done = dflash2("verify", "--html", "nowhere/v.html")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dflash2: nowhere/v.html cannot be written: there is no folder nowhere\n"


def test_a_place_is_one_where_a_file_is_or_could_be(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    require_place(None)
    require_place(file)
    write(file, "\N{GREEK SMALL LETTER LAMDA}")
    assert file.read_bytes() == b"\xce\xbb"
    require_place(file)
    for place in (tmp_path, file / "below"):
        with pytest.raises(Dflash2Error, match="folder"):
            require_place(place)


def test_what_cannot_be_written_after_all_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Dflash2Error, match="could not be written: No such file or directory"):
        write(tmp_path / "gone" / "report.html", b"")
