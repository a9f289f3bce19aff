"""The sample configuration: it describes every option, and its values are the defaults."""

import re
import tomllib
from pathlib import Path

from pressure_server.app.options import GROUPS
from tests.support.guards import settings_of
from tests.support.paths import ROOT

SAMPLE = ROOT / "deploy/pressure-server.toml"
_KEY = re.compile(r"^#([a-z-]+) = (.*)$", re.MULTILINE)


def test_the_sample_can_be_used_as_it_is() -> None:
    assert tomllib.loads(SAMPLE.read_text(encoding="utf-8")) == {}
    assert settings_of("--config", str(SAMPLE)) == settings_of()


def test_the_sample_has_every_option_once() -> None:
    options = [option for group in GROUPS.values() for option in group if option.expose_value]
    found = [key for key, _value in _KEY.findall(SAMPLE.read_text(encoding="utf-8"))]
    assert found == [str(option.name).replace("_", "-") for option in options]


def test_the_values_of_the_sample_are_the_defaults(tmp_path: Path) -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    lines = [f"{key} = {value}" for key, value in _KEY.findall(text) if not value.startswith('"<')]
    assert len(lines) > 20
    config = tmp_path / "all.toml"
    config.write_text("\n".join(lines), encoding="utf-8")
    assert settings_of("--config", str(config)) == settings_of()


def test_a_key_without_a_default_has_no_value_in_the_settings() -> None:
    without = [key for key, value in _KEY.findall(SAMPLE.read_text(encoding="utf-8")) if '"<' in value]
    settings = settings_of()
    assert without
    for key in without:
        assert not getattr(settings, key.replace("-", "_")), key


def test_the_section_of_the_sample_can_be_used(tmp_path: Path) -> None:
    _, _, section = SAMPLE.read_text(encoding="utf-8").partition("#[")
    config = tmp_path / "section.toml"
    config.write_text("[" + section.replace("\n#", "\n"), encoding="utf-8")
    (template,) = settings_of("--config", str(config)).policy.templates
    assert (template.pattern, template.creation.dead_letter) == ("mails:*", b"failed")
