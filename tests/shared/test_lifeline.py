"""The lifeline: a pipe that says when the parent is gone."""

import os
import queue
import subprocess
import sys

from shared import lifeline

PATIENCE_S = 20


def test_the_loss_is_told_once_when_the_other_end_closes():
    mine, theirs = os.pipe()
    lost = queue.Queue()
    thread = lifeline.watch(mine, lambda: lost.put("lost"))
    assert lost.empty()
    os.close(theirs)
    assert lost.get(timeout=PATIENCE_S) == "lost"
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert lost.empty()
    os.close(mine)


def test_what_is_written_means_nothing():
    mine, theirs = os.pipe()
    told = queue.Queue()
    thread = lifeline.watch(mine, lambda: told.put(os.fstat(mine)))
    os.write(theirs, b"abc")
    while os.get_blocking(theirs) and thread.is_alive() and unread(mine):
        pass
    assert told.empty()
    os.close(theirs)
    thread.join(PATIENCE_S)
    assert told.qsize() == 1
    os.close(mine)


def unread(descriptor):
    import select  # noqa: PLC0415 (only here)

    return bool(select.select([descriptor], [], [], 0)[0])


def test_a_process_on_a_lifeline_ends_with_its_parent():
    """Even one that would never end by itself, and without cleaning up."""
    mine, theirs = os.pipe()
    code = (
        "import atexit, sys, threading; from shared import lifeline\n"
        "atexit.register(lambda: print('cleaned up'))\n"
        f"lifeline.watch({mine}, lifeline.exit_now)\n"
        "threading.Event().wait()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], pass_fds=[mine], stdout=subprocess.PIPE)
    os.close(mine)
    assert child.poll() is None
    os.close(theirs)
    said, _ = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, said) == (0, b"")
