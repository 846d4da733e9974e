"""Noticing changes of a folder."""

import asyncio
import os
from pathlib import Path

from hlserve_local.watch import changes, fingerprint


def test_fingerprint_follows_names_and_contents(tmp_path: Path) -> None:
    assert fingerprint(tmp_path) == ""
    (tmp_path / "a.yaml").write_text("a")
    first = fingerprint(tmp_path)
    (tmp_path / "notes.txt").write_text("not a manifest")
    assert fingerprint(tmp_path) == first
    (tmp_path / "a.yaml").rename(tmp_path / "b.yaml")
    assert fingerprint(tmp_path) != first


async def test_several_writes_at_once_are_one_change(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a")
    stream = changes(tmp_path, fingerprint(tmp_path), poll_seconds=0.02)
    waiting = asyncio.ensure_future(anext(stream))
    (tmp_path / "a.yaml").unlink()
    (tmp_path / "a.yaml").write_text("b")
    (tmp_path / "c.yaml").write_text("c")
    async with asyncio.timeout(10):
        assert await waiting == fingerprint(tmp_path)
        (tmp_path / "c.yaml").write_text("d")
        assert await anext(stream) == fingerprint(tmp_path)
        os.replace(tmp_path, tmp_path.with_name("away"))
        assert await anext(stream) == ""
        os.replace(tmp_path.with_name("away"), tmp_path)
        assert await anext(stream) == fingerprint(tmp_path) != ""
