"""Draws the tables of lives (links, sessions, moves, `tree`) into docs/explanation/.

python scripts/life.py            write the figures anew
python scripts/life.py --check    exit 1 if they are not what the code says
"""

from __future__ import annotations

import sys
from pathlib import Path

from isthmus.cooperation.tree.phases import PHASES
from isthmus.exchange.client.life import CLIENT
from isthmus.exchange.link.life import DIALING, GREETING, LINK
from isthmus.exchange.split.life import MOVE, PART
from isthmus.tables import A, E, S, Table

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "explanation"


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


def figures() -> dict[Path, dict[str, str]]:
    """The figures of each page, by name."""
    return {
        PAGES / "life-of-a-link.md": {
            "link": figure(LINK, "DOWN"),
            "greeting": figure(GREETING, "CONNACK", "CONNECT"),
            "dialing": figure(DIALING, "RESTING"),
        },
        PAGES / "tree.md": {"phases": figure(PHASES, "DISCOVERY")},
        PAGES / "relay.md": {"client": figure(CLIENT, "CONNECT")},
        PAGES / "several-brokers.md": {"part": figure(PART, "CONNECTING")},
        PAGES / "geo.md": {"move": figure(MOVE, "PREPARING")},
    }


def drawn(page: Path) -> str:
    text = page.read_text()
    for name, drawing in figures()[page].items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if not end:
            raise ValueError(f"{page} has no place for the figure of {name}")
        text = f"{before}{begin}{drawing}\n{end}{after}"
    return text


def main() -> int:
    wrong = [page for page in figures() if page.read_text() != drawn(page)]
    if "--check" in sys.argv[1:]:
        for page in wrong:
            print(f"{page.relative_to(ROOT)} is not what the code says: python scripts/life.py")
        return bool(wrong)
    for page in wrong:
        page.write_text(drawn(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
