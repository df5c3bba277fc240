"""What has the name of a statistics file and is none is not taken for one."""

from __future__ import annotations

from pathlib import Path

from gnatswarm.spark.read import stored_files


def test_links_to_nowhere_and_directories_are_no_files(tmp_path: Path) -> None:
    file, loop, nowhere = (tmp_path / f"{name}.jsonl.zst" for name in ("file", "loop", "nowhere"))
    file.write_bytes(b"")
    loop.symlink_to(loop)
    nowhere.symlink_to(tmp_path / "missing")
    (tmp_path / "directory.jsonl.zst").mkdir()
    assert list(stored_files(str(tmp_path))) == [file]
