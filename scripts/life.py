"""Draws the tables of a link's life into docs/explanation/life-of-a-link.md.

python scripts/life.py            write the figures anew
python scripts/life.py --check    exit 1 if they are not what the code says
"""

from __future__ import annotations

import sys
from pathlib import Path

from isthmus.exchange.link.life import DIALING, GREETING, LINK, A, E, S, Table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "life-of-a-link.md"


def figure(table: Table[S, E, A], *starts: str) -> str:
    """A state diagram, and the table itself."""
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {start}" for start in starts]
    for state, row in table.items():
        for event, (after, _) in row.items():
            lines.append(f"    {state.name} --> {after.name} : {event.value}")
        if not row:
            lines.append(f"    {state.name} --> [*]")
    lines += [
        "```",
        "",
        "| state | what happens | state after it | what is done |",
        "|---|---|---|---|",
    ]
    for state, row in table.items():
        for event, (after, actions) in row.items():
            done = "; ".join(action.value for action in actions)
            lines.append(f"| {state.name} | {event.value} | {after.name} | {done} |")
    return "\n".join(lines)


def drawn(page: str) -> str:
    for name, text in {
        "link": figure(LINK, "DOWN"),
        "greeting": figure(GREETING, "CONNACK", "CONNECT"),
        "dialing": figure(DIALING, "RESTING"),
    }.items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if not end:
            raise ValueError(f"{PAGE} has no place for the figure of {name}")
        page = f"{before}{begin}{text}\n{end}{after}"
    return page


def main() -> int:
    page = PAGE.read_text()
    if "--check" in sys.argv[1:]:
        if page != drawn(page):
            print(f"{PAGE.relative_to(ROOT)} is not what the code says: python scripts/life.py")
            return 1
        return 0
    PAGE.write_text(drawn(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
