"""Faults: kill -9 and restart, clients that go away at every stage, slow
readers, a full queue, and many requests without growth in resident memory.

    python faults.py MUSER [REQUESTS]
"""

import concurrent.futures
import http.client
import json
import random
import socket
import sys
import time
import urllib.parse

from serving import served

BODY = {"prompt": "Once upon a time", "max_tokens": 4, "seed": 1}


def post(address, body, path="/v1/completions"):
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(address).netloc, timeout=60)
    kind = {"Content-Type": "application/json"}
    connection.request("POST", path, json.dumps(body), kind)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, answer.headers, text


def answer(address):
    status, _, text = post(address, BODY)
    assert status == 200, text
    return json.loads(text)["choices"][0]["text"]


def resident(process):
    with open(f"/proc/{process.pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


def killed(muser):
    with served(muser) as (address, process):
        text = answer(address)
        port = urllib.parse.urlsplit(address).port
        process.kill()
        process.wait()
    with served(muser, port=port) as (address, _):
        assert answer(address) == text, "the same answer after kill -9"


def raw(address, body):
    data = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def gone(muser):
    """Cut at a random byte of the request, or after some of the answer."""
    rng = random.Random(1)
    body = {**BODY, "max_tokens": 300, "stream": True, "ignore_eos": True}
    with served(muser, "--slots", "2") as (address, process):
        text = answer(address)
        host = urllib.parse.urlsplit(address)
        request = raw(address, body)
        for i in range(300):
            client = socket.create_connection((host.hostname, host.port))
            if i % 2:
                client.sendall(request[: rng.randrange(len(request))])
            else:
                client.sendall(request)
                client.recv(rng.randrange(1, 3000))
            client.close()
        until = time.monotonic() + 30
        while True:
            connection = http.client.HTTPConnection(host.netloc)
            connection.request("GET", "/slots")
            slots = json.load(connection.getresponse())
            if not any(s["is_processing"] for s in slots):
                break
            assert time.monotonic() < until, slots
        assert answer(address) == text
        assert process.poll() is None


def slow(muser):
    """Forty who do not read, and one who does."""
    body = {**BODY, "max_tokens": 2000, "stream": True, "ignore_eos": True, "logprobs": 20}
    with served(muser, "--slots", "64", "--ctx", "2048") as (address, process):
        host = urllib.parse.urlsplit(address)
        before = resident(process)
        deaf = []
        for _ in range(40):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host.hostname, host.port))
            client.sendall(raw(address, body))
            deaf.append(client)
        time.sleep(5)
        answer(address)
        grown = resident(process) - before
        print(f"  40 who do not read: {grown / 1024:.0f} MiB more")
        # Caches of 40 sequences are among it: 16 MiB each when full.
        assert grown < 900 * 1024
        for client in deaf:
            client.close()


def overflow(muser):
    with served(muser, "--slots", "1", "--queue", "2") as (address, _):
        body = {**BODY, "max_tokens": 200, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            answers = list(pool.map(lambda _: post(address, body), range(40)))
        refused = [headers for status, headers, _ in answers if status == 429]
        assert refused and len(refused) < 40
        assert {s for s, _, _ in answers} == {200, 429}
        assert all(1 <= int(h["Retry-After"]) <= 60 for h in refused)


def growth(muser, requests):
    with served(muser, "--cache-mib", "64", "--slots", "8", "--queue", "256") as (address, process):
        rng = random.Random(2)
        words = "fox rain story river tree small brave long ago night".split()

        def one(i):
            r = random.Random(i)
            text = " ".join(r.choice(words) for _ in range(r.randrange(1, 40)))
            status, _, text = post(address, {**BODY, "prompt": text, "max_tokens": 3, "seed": i})
            assert status == 200, text

        def many(count):
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                list(pool.map(one, (rng.randrange(1 << 30) for _ in range(count))))
            return resident(process)

        # The cache's budget, threads and buffers are all in use by then.
        warm = many(requests // 5)
        end = many(requests - requests // 5)
        print(f"  {requests} requests: {warm / 1024:.1f} MiB, then {end / 1024:.1f} MiB")
        assert end < warm * 1.05 + 4096


def main(muser, requests):
    for test in [killed, gone, slow, overflow]:
        test(muser)
        print("ok", test.__name__)
    growth(muser, requests)
    print("ok growth")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10_000)
