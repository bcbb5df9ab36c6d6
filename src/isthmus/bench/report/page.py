"""One HTML page that needs nothing beside it: no script, no font, no image to be fetched.

Only strings: a section is a title and HTML that the functions here make.  Everything that comes
from outside goes through `html.escape`, figures apart, which are SVG of our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

__all__ = ["Html", "PageSection", "figure", "folded", "page", "paragraph", "table"]

_STYLE: Final = """
:root { color-scheme: light; --ink: #27272a; --soft: #71717a; --line: #e4e4e7; --blue: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0; background: #fafafa; color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 2.2rem 1.4rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; margin: 0 0 .6rem; }
.lead { color: var(--soft); margin: 0 0 1.2rem; max-width: 52rem; }
nav { margin: 0 0 1.4rem; font-size: .92rem; }
nav a { margin-right: 1rem; white-space: nowrap; }
a { color: var(--blue); text-decoration: none; } a:hover { text-decoration: underline; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px;
  padding: 1.2rem 1.3rem 1.3rem; margin: 0 0 1.2rem; }
section p { max-width: 56rem; margin: .2rem 0 .8rem; }
figure { margin: .6rem 0 0; overflow-x: auto; }
figure svg { display: block; width: 100%; height: auto; min-width: 680px; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .4rem; max-width: 56rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { text-align: left; font-weight: 600; color: var(--soft); white-space: nowrap; }
th, td { padding: .34rem .7rem .34rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
details { min-width: 16rem; } details ul { margin: .2rem 0; padding-left: 1.1rem; }
summary { cursor: pointer; color: var(--blue); white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.yes, .no, .noise, .none { display: inline-block; border-radius: 99px; padding: 0 .6rem;
  font-size: .84rem; white-space: nowrap; }
.yes { background: #d9f2e6; color: #00543d; } .no { background: #fbe2d3; color: #8a3700; }
.noise { background: #fdf3d0; color: #6b5200; } .none { background: #f4f4f5; color: #71717a; }
@media print { body { background: #fff; } section { break-inside: avoid; } nav { display: none; } }
"""

_BADGES: Final = {"yes": "yes", "no": "no", "within noise": "noise", "not measured": "none"}


@dataclass(frozen=True, slots=True)
class PageSection:
    """A part of the page; `body` is HTML."""

    title: str
    body: str


def page(title: str, lead: str, sections: Sequence[PageSection]) -> str:
    """The whole document."""
    links = "\n".join(
        f'<a href="#s{number}">{escape(section.title)}</a>'
        for number, section in enumerate(sections)
    )
    bodies = "\n".join(
        f'<section id="s{number}"><h2>{escape(section.title)}</h2>\n{section.body}\n</section>'
        for number, section in enumerate(sections)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style></head>\n<body><main>\n"
        f'<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>\n<nav>{links}</nav>\n'
        f"{bodies}\n</main></body></html>\n"
    )


class Html(str):
    """A cell that is HTML already."""

    __slots__ = ()


def folded(texts: Sequence[str]) -> Html:
    """Texts that are shown when one asks for them."""
    if not texts:
        return Html("")
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    many = f"{len(texts)} notes" if len(texts) > 1 else "1 note"
    return Html(f"<details><summary>{many}</summary><ul>{items}</ul></details>")


def paragraph(text: str) -> str:
    """Plain text."""
    return f"<p>{escape(text)}</p>"


def figure(svg: str, caption: str) -> str:
    """An SVG of :func:`isthmus.bench.report.plots.svg` with what it shows."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Numbers to the right, verdicts as badges; None is an empty cell."""
    numeric = [
        bool(rows) and all(_is_number(row[column]) for row in rows) for column in range(len(header))
    ]
    head = "".join(
        f"<th{_class(right)}>{escape(name)}</th>"
        for name, right in zip(header, numeric, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(
            f"<td{_class(right)}>{_cell(value)}</td>"
            for value, right in zip(row, numeric, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _class(right: bool) -> str:
    return ' class="n"' if right else ""


def _is_number(value: object) -> bool:
    """A number, or text that begins like one."""
    if value is None or isinstance(value, int | float):
        return True
    if isinstance(value, Html):
        return False
    return isinstance(value, str) and (value == "" or value.lstrip("≥ -+")[:1].isdigit())


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Html):
        return value
    if isinstance(value, str) and value in _BADGES:
        return f'<span class="{_BADGES[value]}">{value}</span>'
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return escape(str(value))
