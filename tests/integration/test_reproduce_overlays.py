"""Two experiments of the Overlays paper from their brokers to the report, nothing left out."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from conftest import require_broker
from isthmus.reproduce.overlays.command import Settings, reproduce
from isthmus.reproduce.overlays.experiments import Parameters
from support.spark import spark

__all__ = ["spark"]

PARAMETERS = Parameters(publishers=4, subscribers=2, rate=4.0, messages=4)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")  # the job's own session is this one
def test_at_full_locality_topic_overlays_keep_messages_where_they_are(tmp_path: Path) -> None:
    require_broker("mosquitto")
    settings = Settings(
        tmp_path / "out",
        only=("l100-t3-flooding", "l100-t3-capacity", "l50-t3-single"),
        parameters=PARAMETERS,
        minutes=0,
    )
    said = io.StringIO()
    done = reproduce(settings, console=Console(file=said, width=160))
    assert done.failed == {}, said.getvalue()
    cells = {row["run"]: row for row in done.tables["cells"]}
    flooded, kept = cells["l100-t3-flooding-1"], cells["l100-t3-capacity-1"]
    # Four publishers of 4 messages/s; each message on the four links of the tree.
    assert flooded["publications_s"] == pytest.approx(4 * 4 * 4, rel=0.35)
    assert kept["publications"] == 0
    assert kept["publications_bytes"] == 0
    for row in (flooded, kept):
        assert row["lost"] == 0
        assert row["expected"] > 0
        assert row["delay_ms"] > 0
        assert row["signalling_bytes"] > row["signalling_bytes_s"] > 0
        assert row["node_cores"] > 0
        assert row["broker_rss_bytes"] > 0
    (repaired,) = [each.repaired for each in done.measured if each.repaired is not None]
    assert 0 < repaired.took_s < 30
    for each in done.measured:
        assert each.converged.root == "n1"  # the tie goes to the lowest address
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(written["grid"]) == 3
    assert (
        "<h2>Traffic between nodes (Fig. 7)</h2>" in (tmp_path / "out" / "report.html").read_text()
    )

    again = reproduce(
        settings, console=Console(file=io.StringIO()), write=lambda done, claims: None
    )
    assert again.measured == done.measured
    assert again.tables["cells"] == done.tables["cells"]
