"""Reports: the results as tables for the terminal, and as JSON."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.plan import Plan
from benchmarks.results import Row, Table
from benchmarks.subjects import program

LATEST = Path(__file__).with_name("results") / "latest.json"


def as_text(table: Table) -> str:
    """Return the table in columns, with each row's target and verdict at the end of its line."""
    heading = (f"{table.part}: {table.unit}", "")
    header = ["", *table.columns, "target", ""]
    lines = [header, *(_cells(row) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = (_aligned(line, widths) for line in lines)
    return "\n".join((*heading, *text))


def write_json(tables: Iterable[Table], plan: Plan, seconds: float) -> None:
    """Replace the file of the latest results. `seconds` is how long the run took."""
    found = {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "plan": asdict(plan),
        "machine": _machine(),
        "parts": {table.part: {"unit": table.unit, "rows": _rows(table)} for table in tables},
    }
    LATEST.parent.mkdir(exist_ok=True)
    LATEST.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def _cells(row: Row) -> list[str]:
    target = [str(row.target), row.target.verdict] if row.target else ["", ""]
    return [row.label, *map(_number, row.values), *target]


def _aligned(cells: list[str], widths: list[int]) -> str:
    """Align the first and the last two cells to the left, and the numbers between them to the right."""
    numbers = range(1, len(cells) - 2)
    aligned = (
        cell.rjust(width) if at in numbers else cell.ljust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(aligned).rstrip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.2f}"


def _rows(table: Table) -> list[dict[str, object]]:
    rows = []
    for row in table.rows:
        found: dict[str, object] = {"label": row.label, "samples": row.samples}
        found |= {"values": dict(zip(table.columns, row.values, strict=True))}
        if row.target:
            found |= {
                "target": str(row.target),
                "measured": row.target.measured,
                "verdict": row.target.verdict,
            }
        rows.append(found)
    return rows


def _machine() -> dict[str, object]:
    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "redis": _version("redis-server", "--version"),
        "twemproxy": _version("nutcracker", "--version"),
        "memcached": _version("memcached", "--version"),
        "beanstalkd": _version("beanstalkd", "-v"),
    }


def _version(name: str, flag: str) -> str:
    """Return the first line of a program's version text, which nutcracker prints to stderr."""
    said = subprocess.run([program(name), flag], capture_output=True, text=True, timeout=10, check=False)
    return (said.stdout + said.stderr).strip().split("\n")[0]
