"""The options of gateways: what `isthmus check` and a node refuse, and what they say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.cli.main import main
from isthmus.cooperation.registry import check_options

CELLS = {"main": ["0", "1"], "plant": ["2", "3"]}


def test_what_is_allowed() -> None:
    for k in (1, 24):
        check_options("geo", {"k": k, "cells": CELLS, "other": "plant"}, ("main", "plant"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cells": CELLS}, "k: None is not a number of digits from 1 to 24"),
        ({"k": 0, "cells": CELLS}, "k: 0 is not a number of digits"),
        ({"k": 25, "cells": CELLS}, "k: 25 is not a number of digits from 1 to 24"),
        ({"k": 2}, "cells: is required"),
        ({"k": 2, "cells": {}}, "cells: is required"),
        ({"k": 2, "cells": {"main": "0"}}, "cells: main has '0'; write a list"),
        ({"k": 2, "cells": {"main": ["0", "1"], "plant": ["3"]}}, 'cells: a gap: nobody has "2"'),
        ({"k": 2, "cells": {"main": ["0", "1"], "plan": ["2", "3"]}}, "no broker 'plan'; there"),
        ({"k": 2, "cells": CELLS, "other": 3}, "other: 3 is not the name of a broker"),
        ({"k": 2, "cells": CELLS, "other": "x"}, "other: there is no broker 'x'; there are main"),
        ({"k": 2, "cells": CELLS, "kk": 2}, "kk"),
    ],
)
def test_what_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_options("geo", options, ("main", "plant"))


def test_cells_of_brokers_without_names() -> None:
    with pytest.raises(ValueError, match=r"cells: name brokers, .* use \[\[broker\]\]"):
        check_options("geo", {"k": 2, "cells": CELLS})


FILE = """\
[node]
id = "g"

[[broker]]
name = "main"
url = "mqtt://127.0.0.1:1884"

[[broker]]
name = "plant"
url = "mqtt://127.0.0.1:1885"

[cooperation]
algorithm = "geo"
k = 2

[cooperation.cells]
main = ["0", "1"]
plant = ["2", "3"]
"""
ONE = FILE[: FILE.index("[[broker]]")] + '[broker]\nurl = "mqtt://127.0.0.1:1884"\n'
ONE += FILE[FILE.index("[cooperation]") :]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FILE, ""),
        (FILE.replace("k = 2", "k = 25"), ":14: cooperation.k: 25 is not"),
        (FILE.replace("plant =", "plan ="), ":16: cooperation.cells: there is no broker 'plan'"),
        (ONE, "cooperation.cells: name brokers, and the node has one without a name"),
    ],
)
def test_a_file_is_refused_with_the_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["check", str(path)])
    assert ended.value.code == (2 if said else 0)
    assert said in capsys.readouterr().err
