"""A systemd unit file, as far as the tests ask it questions."""

from __future__ import annotations

from pathlib import Path


class UnitFile:
    """Its settings; of one that is given several times, all in order."""

    def __init__(self, path: Path) -> None:
        self.settings: dict[str, list[str]] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            if line and line[0] not in "#;[":
                key, _, value = line.partition("=")
                self.settings.setdefault(key, []).append(value)

    def one(self, key: str) -> str:
        """The value of a setting that is given once."""
        (value,) = self.settings[key]
        return value

    def words(self, key: str) -> list[str]:
        """All values of a setting that is a list of words."""
        return [word for value in self.settings.get(key, []) for word in value.split()]
