"""schemathesis against /openapi.json: malformed requests, and some that are not.

Every answer has to be one that the document describes, and none a server
error.
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from serving import served


def main(muser, examples):
    with served(muser, "--ctx", "256") as (address, process):
        command = [
            str(Path(sys.executable).parent / "schemathesis"),
            "run",
            f"{address}/openapi.json",
            "--url",
            address,
            "--phases",
            "coverage,fuzzing",
            "--mode",
            "all",
            "--max-examples",
            str(max(1, examples // 13)),
            "--checks",
            "not_a_server_error,status_code_conformance,content_type_conformance,"
            "response_schema_conformance",
            "--seed",
            "1",
        ]
        # What it keeps for its next run is of no use here.
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(command, cwd=folder)
        assert process.poll() is None, "the server is gone"
        body = json.dumps({"prompt": "Once", "max_tokens": 2}).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{address}/v1/completions", body, kind)
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 2
        sys.exit(done.returncode)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
