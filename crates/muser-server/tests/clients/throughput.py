"""Aggregate decode of several streams against that of one.

    python throughput.py MUSER MODEL [STREAMS]

Prints tokens a second, greedy, without the time of the prompts.
"""

import concurrent.futures
import http.client
import json
import sys
import time
import urllib.parse

from serving import served

# Long enough that the first and the last passes, which have fewer rows, weigh
# little.
TOKENS = 96


def answer(address, seed, tokens):
    # Token ids, for a model of random weights has no text.
    body = {"prompt": [1 + seed, 2, 3], "max_tokens": tokens, "temperature": 0}
    body |= {"ignore_eos": True, "cache_prompt": False}
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(address).netloc, timeout=600)
    kind = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), kind)
    found = json.load(connection.getresponse())
    assert found["usage"]["completion_tokens"] == tokens, found


def seconds(address, streams, tokens):
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        list(pool.map(lambda seed: answer(address, seed, tokens), range(streams)))
    return time.monotonic() - start


def rate(address, streams):
    """Tokens a second after the first one: prompts are taken off."""
    decode = seconds(address, streams, TOKENS) - seconds(address, streams, 1)
    return streams * (TOKENS - 1) / decode


def busy(address):
    """Seconds in forward passes so far."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(address).netloc)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return next(float(x.split()[1]) for x in lines if x.startswith("muser_busy_seconds_total"))


def main(muser, model, streams):
    with served(muser, "--model", model, "--slots", str(streams)) as (address, _):
        rate(address, 1)
        one = [rate(address, 1) for _ in range(3)]
        start, before = time.monotonic(), busy(address)
        many = [rate(address, streams) for _ in range(3)]
        share = (busy(address) - before) / (time.monotonic() - start)
        print(f"1 stream: {', '.join(f'{r:.2f}' for r in one)} tokens/s")
        print(f"{streams} streams: {', '.join(f'{r:.2f}' for r in many)} tokens/s")
        print(f"of their time in forward passes: {100 * share:.1f} %")
        print(f"best against best: {max(many) / max(one):.2f}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 8)
