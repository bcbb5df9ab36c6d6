"""Structured logs: one record is one line, whatever is in it."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isthmus.logs import configure, get_logger


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("isthmus")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def stream(level: str = "info", format: Literal["text", "json"] = "text") -> io.StringIO:
    output = io.StringIO()
    configure(level, format, output)
    return output


def test_text() -> None:
    output = stream()
    get_logger("isthmus.x").info("client connected", client_id="a", remote="127.0.0.1:1", n=3)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO client connected "
        r"client_id=a remote=127\.0\.0\.1:1 n=3\n",
        output.getvalue(),
    )


def test_json() -> None:
    output = stream(format="json")
    get_logger("isthmus.x").warning("odd", level="mine", value=None, path=object)
    entry = json.loads(output.getvalue())
    assert entry["level"] == "warning"
    assert entry["event"] == "odd"
    assert entry["logger"] == "isthmus.x"
    assert entry["field_level"] == "mine"
    assert entry["value"] is None
    assert entry["path"] == "<class 'object'>"


def test_levels() -> None:
    output = stream("warning")
    log = get_logger("isthmus.x")
    log.info("no")
    log.error("yes", code=1)
    assert output.getvalue().count("\n") == 1
    assert output.getvalue().endswith("ERROR yes code=1\n")
    log.debug("no")
    assert output.getvalue().count("\n") == 1
    output = stream("debug")
    log.debug("yes")
    assert output.getvalue().endswith("DEBUG yes\n")


def test_configuring_again_replaces() -> None:
    first, second = stream(), stream()
    get_logger("isthmus.x").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_other_libraries_come_out_from_warning_on() -> None:
    output = stream("debug")
    logging.getLogger("somelib").info("no")
    logging.getLogger("somelib").warning("yes %d%%", 5)
    assert output.getvalue().endswith("WARNING yes 5% logger=somelib\n")


@pytest.mark.parametrize("format", ["text", "json"])
def test_exceptions(format: Literal["text", "json"]) -> None:
    output = stream(format=format)
    try:
        raise ValueError("inner")
    except ValueError:
        get_logger("isthmus.x").exception("failed", step=1)
    assert "ValueError: inner" in output.getvalue()
    if format == "json":
        assert output.getvalue().count("\n") == 1


def test_a_field_that_cannot_be_rendered() -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    for format in ("text", "json"):
        output = stream(format="json" if format == "json" else "text")
        get_logger("isthmus.x").info("event", field=Broken())
        assert "<Broken: RuntimeError>" in output.getvalue()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(), st.text(), st.sampled_from(["text", "json"]))
def test_one_record_is_one_line(event: str, value: str, format: Literal["text", "json"]) -> None:
    output = stream(format=format)
    get_logger("isthmus.x").info(event, client_id=value, after="end")
    written = output.getvalue()
    assert written.endswith("\n")
    assert len(written.splitlines()) == 1
    if format == "json":
        entry = json.loads(written)
        assert (entry["event"], entry["client_id"]) == (event, value)
    else:
        assert written.endswith(" after=end\n")
        assert "\x1b" not in written
