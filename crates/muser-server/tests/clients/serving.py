"""Starts `muser serve` for a test and ends it."""

import contextlib
import re
import subprocess


@contextlib.contextmanager
def served(muser, *options, port=0):
    """The address of a server that runs as long as the block, and its process."""
    command = [muser, "serve", "--quiet", "--port", str(port), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        found = re.search(r"listening on (https?://\S+)", line)
        assert found, f"no server: {line!r}"
        yield found.group(1), process
    finally:
        if process.poll() is None:
            process.terminate()
            assert process.wait(60) == 0, "SIGTERM ends it as it should"
