"""Child processes: ready lines, last words, and never one left behind."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hlserve_local.processes import Guard, StartError, describe_exit, start_child
from hlserve_local.testing.waiting import eventually, is_gone

PARENT = """
import asyncio, sys
from pathlib import Path
from hlserve_local.processes import Guard, start_child

async def main():
    folder = Path(sys.argv[1])
    guard = Guard(folder)
    child = await start_child("c", [sys.executable, "-c", CHILD], guard=guard, log=folder / "log")
    await child.read_ready_line("ready", 30)
    print(child.pid, guard.pid, flush=True)
    await asyncio.Event().wait()

CHILD = '''
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", grandchild.pid, flush=True)
time.sleep(600)
'''
asyncio.run(main())
"""


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    guard = Guard(tmp_path / "private")
    yield guard
    guard.close()


async def test_children_of_a_killed_parent_end_even_if_they_ignore_sigterm(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, str(private), stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child, guard = (int(word) for word in (await parent.stdout.readline()).split())
    parent.kill()
    await parent.wait()
    await eventually(lambda: is_gone(child) and is_gone(guard), "the child's end")
    assert not private.exists()


async def test_ready_line_gives_the_addresses(guard: Guard, tmp_path: Path) -> None:
    code = "import time; print('noise'); print('it listens on http://127.0.0.1:1 admin http://127.0.0.1:2', flush=True); time.sleep(600)"
    child = await start_child("c", [sys.executable, "-c", code], guard=guard, log=tmp_path / "log")
    await child.read_ready_line("it listens on", 30)
    assert child.urls == ("http://127.0.0.1:1", "http://127.0.0.1:2")
    await child.stop(5)
    assert child.returncode == -signal.SIGTERM


async def test_child_that_dies_at_once_leaves_its_last_words(guard: Guard, tmp_path: Path) -> None:
    code = "import sys; sys.exit('the model is missing')"
    child = await start_child("chat-0", [sys.executable, "-c", code], guard=guard, log=tmp_path / "log")
    with pytest.raises(
        StartError, match=r"chat-0 ended with exit status 1 before it was ready(.|\n)*the model is missing"
    ):
        await child.read_ready_line("ready", 30)


async def test_child_that_never_gets_ready(guard: Guard, tmp_path: Path) -> None:
    child = await start_child(
        "c", [sys.executable, "-c", "import time; time.sleep(600)"], guard=guard, log=tmp_path / "log"
    )
    with pytest.raises(StartError, match=r"was not ready within 0\.3 s"):
        await child.read_ready_line("ready", 0.3)
    await child.stop(5)


async def test_child_that_ignores_sigterm_is_killed(guard: Guard, tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    child = await start_child("c", [sys.executable, "-c", code], guard=guard, log=tmp_path / "log")
    await child.read_ready_line("ready", 30)
    await child.stop(0.2)
    assert child.returncode == -signal.SIGKILL


def test_exit_in_words() -> None:
    assert describe_exit(3) == "ended with exit status 3"
    assert describe_exit(-9) == "was ended by SIGKILL"
