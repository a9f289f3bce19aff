"""The modules of the library: what each writes, and that what lives on between calls is filled anew."""

import re
from pathlib import Path

import pytest

from pressure_server.lua import scripts

LUA = Path(scripts.__file__).parent
# The state of the call, the block and the queue: by the name of each (preamble.lua), its module, and the
# functions that fill it.
STATES = {
    "the_call": ("core/call", ("begin",)),
    "block": ("core/blocks", ("begin", "next", "begin_run", "begin_runs")),
    "queue": ("core/queue", ("read", "begin")),
}
# The functions of a kind, and the kinds themselves, are not state.
NO_STATE = {"kinds"}


def modules() -> dict[str, str]:
    """Return the text of each module that the library has, by its name."""
    found: dict[str, str] = {}

    def add(name: str) -> None:
        if name not in found:
            found[name] = (LUA / f"{name}.lua").read_text()
            for required in re.findall(r"require '([\w/]+)'", found[name]):
                add(required)

    add("core/library")
    return found


MODULES = modules()


def written(text: str) -> set[tuple[str, str]]:
    """Return what the text assigns to: each table with a field."""
    code = re.sub(r"--.*", "", text)
    targets = re.findall(r"^\s*(?:if .* then |for .* do )?((?:[\w.]+, )*[\w.]+) = ", code, re.MULTILINE)
    names = [name.split(".") for line in targets for name in line.split(", ")]
    functions = re.findall(r"^function (\w+)\.(\w+)", code, re.MULTILINE)
    return {(name[0], name[1]) for name in names if len(name) > 1} | set(functions)


def required(text: str) -> dict[str, str]:
    """Return the modules that a text requires, by their local names."""
    return dict(re.findall(r"^local (\w+) = require '([\w/]+)'$", text, re.MULTILINE))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_writes_no_other_but_the_states(name: str) -> None:
    text = MODULES[name]
    others = {*required(text), "commands"} - {name.rpartition("/")[2]}
    for local, field in written(text):
        assert local not in others, f"{name} writes {local}.{field}"


@pytest.mark.parametrize("name", MODULES)
def test_no_module_has_another_thing_with_the_name_of_a_state(name: str) -> None:
    code = re.sub(r"--.*", "", MODULES[name])
    names = [*re.findall(r"(?:local|for) ([\w, ]+)", code), *re.findall(r"function [\w.]*\(([^)]*)\)", code)]
    assert not {*STATES, "commands"} & {one.strip() for some in names for one in some.split(",")}


@pytest.mark.parametrize("state", STATES)
def test_every_field_of_a_state_is_filled_where_it_begins(state: str) -> None:
    module, functions = STATES[state]
    bodies = [
        re.search(rf"^function {state}\.{one}\(.*?^end$", MODULES[module], re.MULTILINE | re.DOTALL)
        for one in functions
    ]
    filled = {field for body in bodies if body for local, field in written(body[0]) if local == state}
    assigned = {field for text in MODULES.values() for local, field in written(text) if local == state}
    own = {field for local, field in re.findall(r"^function (\w+)\.(\w+)", MODULES[module], re.MULTILINE)}
    assert len(filled) > 5
    assert assigned - own - NO_STATE <= filled


def test_no_module_but_the_kinds_asks_for_the_kind() -> None:
    for name, text in MODULES.items():
        if not name.startswith("kinds/"):
            assert not re.search(r"queue\.word [=~]= '(jobs|reserved|log)'", text), name
