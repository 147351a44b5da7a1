"""Attacks: requests that would stop, starve or bloat a server without bounds,
while another client streams.

    python attack.py MUSER [NAME ...]

For each attack a server of its own is started with the embedded model. One
client streams from it all the time and one asks for /health; then the attack is
sent by many clients at once. The table has, a row an attack: the stream's time
between tokens at the 99th percentile, the slowest /health, the memory above that
of the server before the attack, and how long SIGTERM took in the middle of a
second round. A value over its bound, or a server that is gone, is marked and makes
the exit code 1. Standard library only; Linux, for /proc and 127.0.0.0/8.
"""

import json
import queue
import re
import socket
import subprocess
import sys
import threading
import time

# Milliseconds between tokens at the 99th percentile.
BETWEEN = 250
# Milliseconds for /health.
HEALTH = 100
# MiB of the budget and of the prefix cache, as the server is told.
MEMORY, CACHE = 256, 32
# Seconds of grace, and what the end of a process may take beside.
GRACE, EXIT = 2, 0.5
# Seconds that an attack goes on, and at least so many tokens are timed.
LASTS, TOKENS = 8, 200
# Clients that attack at once.
CLIENTS = 16
# Addresses are clients: the attackers', the stream's, the operator's.
ATTACKER, READER, OPERATOR = "127.0.0.1", "127.0.0.2", "127.0.0.3"


class Server:
    """`muser serve` with few enough seconds of grace to wait for them."""

    def __init__(self, muser, *options, stderr=subprocess.DEVNULL):
        command = [muser, "serve", "--quiet", "--port", "0", "--ctx", "2048"]
        command += ["--memory-mib", str(MEMORY), "--cache-mib", str(CACHE)]
        command += ["--grace", str(GRACE), *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
        line = self.process.stdout.readline()
        found = re.search(r"http://([\d.]+):(\d+)", line)
        assert found, f"no server: {line!r}"
        self.address = (found[1], int(found[2]))

    def connect(self, source, timeout=30):
        return socket.create_connection(self.address, timeout, (source, 0))

    def resident(self):
        """MiB."""
        with open(f"/proc/{self.process.pid}/status") as f:
            kib = next((int(x.split()[1]) for x in f if x.startswith("VmRSS")), 0)
        return kib / 1024

    def alive(self):
        return self.process.poll() is None

    def terminate(self):
        """Seconds that SIGTERM took, and the exit code."""
        start = time.monotonic()
        self.process.terminate()
        try:
            code = self.process.wait(GRACE + 30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        return time.monotonic() - start, code


def request(path, body, headers=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"{headers}Content-Length: {len(data)}\r\n\r\n"
    ).encode() + data


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def chat(**fields):
    fields.setdefault("messages", [{"role": "user", "content": "hi"}])
    fields.setdefault("max_tokens", 60)
    return request(CHAT, fields)


def schema(value):
    format = {"type": "json_schema", "json_schema": {"name": "a", "schema": value}}
    return chat(reasoning_effort="none", response_format=format)


def tool(parameters):
    function = {"name": "book", "parameters": parameters}
    return chat(tools=[{"type": "function", "function": function}], tool_choice="required")


def chain(link, length):
    definitions = {str(i): link(f"#/$defs/{i + 1}") for i in range(length)}
    return {"$defs": {**definitions, str(length): {}}, "$ref": "#/$defs/0"}


def properties(count):
    return {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(count)}}


def patterns(count):
    """Pattern properties of which any two overlap."""
    names = (f"^a{i}x*$" for i in range(count))
    return {"type": "object", "patternProperties": {n: {"type": "integer"} for n in names}}


def endless(**fields):
    fields = {"prompt": "Once", "max_tokens": 100_000, "ignore_eos": True, **fields}
    return request(TEXT, fields)


MIB = 1 << 20
INTEGERS = [(-1e19, -1e19), (-1e20, -1e19), (-(2**63), -(2**63)), (-(2**63), 1 - 2**63)]


def schemas():
    """Bombs that are schemas, by name."""
    for low, high in INTEGERS:
        yield "integer range", schema({"type": "integer", "minimum": low, "maximum": high})
    for length in (301, 659, 10_000):
        yield "chain of $ref", schema(chain(lambda ref: {"$ref": ref}, length))
        yield "chain of items", schema(chain(lambda ref: {"items": {"$ref": ref}}, length))
        yield "chain of anyOf", schema(chain(lambda ref: {"anyOf": [{"$ref": ref}]}, length))
        yield "chain of allOf", schema(chain(lambda ref: {"allOf": [{"$ref": ref}]}, length))
    yield "7000 properties", schema(properties(7000))
    yield "7000 properties", tool(properties(7000))
    yield "const object", schema({"const": {f"k{i}": i for i in range(10_000)}})
    yield "required names", schema(
        {"type": "object", "required": [f"r{i}" for i in range(50_000)]}
    )
    for multiple in (300_007, 1_000_003, 2_000_003):
        yield "multipleOf", schema({"type": "integer", "multipleOf": multiple})
    yield "multipleOf twice", schema(
        {"type": "number", "allOf": [{"multipleOf": 0.001}, {"multipleOf": 4_294_967}]}
    )
    for count in (200, 400, 2000):
        yield "patternProperties", schema(patterns(count))
    yield "enum of 100000", tool(
        {
            "type": "object",
            "properties": {"c": {"enum": [f"e{i}" for i in range(100_000)]}},
            "required": ["c"],
        }
    )
    yield "nested repetition", schema({"type": "string", "pattern": "^((a{100}){100}){100}$"})
    yield "optional a", schema({"type": "string", "pattern": "^(a?){1000}a{1000}$"})
    yield "const of 10^6", schema({"const": "x" * 1_000_000})
    yield "self reference", schema({"$ref": "#"})
    yield "minItems", schema({"type": "array", "minItems": 2_000_000, "items": {"type": "null"}})


def bodies():
    """Bombs that are bodies, by name."""
    for path, body in [
        ("/apply-template", {"messages": [{"role": "user", "content": "<|eot|>" * 30_000}]}),
        (CHAT, {"messages": [{"role": "user", "content": "<|eot|>" * 1_000_000}]}),
        (CHAT, {"messages": [{"role": "user", "name": "<|eot|>" * 30_000, "content": "x"}]}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}] * 200_000}),
    ]:
        yield "control tokens", request(path, body)
    yield "letters", request("/tokenize", {"content": "a" * (8 * MIB - 100)})
    yield "letters", request(TEXT, {"prompt": "a" * (4 * MIB - 100)})
    yield "words", request("/v1/embeddings", {"input": "once upon " * 400_000})
    small = b"[1]," * (2 * MIB - 100)
    yield "arrays", request(TEXT, b'{"prompt":[' + small + b"[1]]}")
    yield "arrays", request(CHAT, b'{"tools":[' + b"[]," * (2 * MIB) + b"[]]}")
    yield "objects", request(CHAT, b'{"tools":[' + b"{}," * (2 * MIB) + b"{}]}")
    yield "numbers", request(TEXT, b'{"prompt":[' + b"1," * (3 * MIB) + b"1]}")
    yield "depth", request(TEXT, b'{"prompt":' + b"[" * (4 * MIB))
    yield "names", request(TEXT, json.dumps({"x" * 10 + str(i): i for i in range(300_000)}).encode())
    tools = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(100_000)]
    yield "100000 tools", chat(tools=tools)
    yield "long numbers", request(TEXT, b'{"prompt":"x","seed":' + b"1" * (4 * MIB) + b"}")
    yield "103 MB answer", endless(n=32, max_tokens=2000, logprobs=20)


def grouped(pairs):
    groups = {}
    for name, data in pairs:
        groups.setdefault(name, []).append(data)
    return groups


def sends(requests):
    """Sends requests again and again, and does not wait long for answers."""

    def attack(server, number, stop):
        while not stop.is_set():
            data = requests[number % len(requests)]
            number += 1
            try:
                with server.connect(ATTACKER, timeout=5) as client:
                    client.sendall(data)
                    client.settimeout(2)
                    while client.recv(65536):
                        if stop.is_set():
                            return
            except OSError:
                stop.wait(0.01)

    return attack


def holds(begin, drip=b"", each=20):
    """Opens connections that send a beginning and then next to nothing."""

    def attack(server, number, stop):
        clients = []
        while not stop.is_set():
            try:
                if len(clients) < 60:
                    client = server.connect(ATTACKER, timeout=5)
                    client.sendall(begin)
                    clients.append(client)
                elif drip:
                    for client in clients[:each]:
                        client.sendall(drip)
            except OSError:
                # The server has closed one of them, as it should.
                for client in clients[:each]:
                    client.close()
                del clients[:each]
            if len(clients) >= 60:
                stop.wait(0.2)
        for client in clients:
            client.close()

    return attack


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


def attacks():
    found = {name: sends(all) for name, all in grouped(bodies()).items()}
    found |= {
        "unread streams": holds(endless(n=4, logprobs=20, stream=True)),
        "n = 68": holds(endless(n=68)),
        "200 connections": holds(endless(stream=True)),
        "idle sockets": holds(b""),
        "slow heads": holds(HEAD, b"A: b\r\n"),
        "slow bodies": holds(
            HEAD + b"Content-Type: application/json\r\nContent-Length: 8000000\r\n\r\n{", b" "
        ),
        "pipelined": sends([b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20_000]),
    }
    return found | {name: sends(all) for name, all in grouped(schemas()).items()}


def lines(client, head):
    """The lines of an answer as they come."""
    client.sendall(head)
    rest = b""
    while data := client.recv(65536):
        *all, rest = (rest + data).split(b"\n")
        yield from all


class Watch:
    """A client that streams, one that asks for /health, and the memory."""

    def __init__(self, server):
        self.server, self.stop = server, threading.Event()
        self.between, self.health, self.memory = [], [], []
        self.failures = queue.SimpleQueue()
        work = [self.stream, self.ask, self.measure]
        self.threads = [threading.Thread(target=self.guarded, args=(w,)) for w in work]
        for thread in self.threads:
            thread.start()

    def guarded(self, work):
        while not self.stop.is_set():
            try:
                work()
            except (OSError, AssertionError) as error:
                if not self.stop.is_set():
                    self.failures.put(f"{work.__name__}: {error}")
                    self.stop.wait(0.2)

    def stream(self):
        with self.server.connect(READER) as client:
            last = None
            for line in lines(client, endless(stream=True, seed=7)):
                if line.startswith(b"HTTP/1.1") and b" 200 " not in line:
                    raise AssertionError(line.decode())
                if line.startswith(b"data: {"):
                    now = time.monotonic()
                    if last is not None:
                        self.between.append(1000 * (now - last))
                    last = now
                if line == b"data: [DONE]\r" or line == b"data: [DONE]":
                    return
                if self.stop.is_set():
                    return

    def ask(self):
        start = time.monotonic()
        with self.server.connect(OPERATOR) as client:
            head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            answer = b"\n".join(lines(client, head))
        assert answer.startswith(b"HTTP/1.1 200"), answer[:80]
        self.health.append(1000 * (time.monotonic() - start))
        self.stop.wait(0.02)

    def measure(self):
        self.memory.append(self.server.resident())
        self.stop.wait(0.01)

    def forget(self):
        for values in (self.between, self.health, self.memory):
            values.clear()

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(35)


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("inf")


class Attackers:
    def __init__(self, server, attack):
        self.stop = threading.Event()
        self.threads = [
            threading.Thread(target=attack, args=(server, i, self.stop), daemon=True)
            for i in range(CLIENTS)
        ]
        for thread in self.threads:
            thread.start()

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(10)


def try_one(muser, attack):
    """The row of one attack: values with their bounds, and what went wrong."""
    server = Server(muser)
    watch = Watch(server)
    # What is made once is made, and the stream's own memory is there.
    time.sleep(2)
    base = server.resident()
    watch.forget()
    attackers = Attackers(server, attack)
    end = time.monotonic() + LASTS
    most = end + 60
    while time.monotonic() < end or len(watch.between) < TOKENS:
        if not server.alive() or time.monotonic() > most:
            break
        time.sleep(0.05)
    attackers.end()
    watch.end()
    alive = server.alive()
    values = [
        (percentile(watch.between, 0.99), BETWEEN),
        (max(watch.health, default=float("inf")), HEALTH),
        (max(watch.memory, default=0) - base, MEMORY + CACHE),
    ]
    failures = set()
    while not watch.failures.empty():
        failures.add(watch.failures.get())
    # In the middle of the attack, by a server that has seen nothing before.
    server.terminate()
    server = Server(muser)
    attackers = Attackers(server, attack)
    time.sleep(1)
    alive = alive and server.alive()
    took, code = server.terminate()
    attackers.end()
    values.append((took, GRACE + EXIT))
    if not alive:
        failures.add("the server is gone")
    if code != 0:
        failures.add(f"exit code {code} at SIGTERM")
    return values, sorted(failures)


def main(muser, names):
    all = attacks()
    chosen = [n for n in all if not names or any(name in n for name in names)]
    assert chosen, f"no attack of these names; there are {', '.join(all)}"
    print(f"{'attack':18} {'token p99':>10} {'health':>9} {'memory':>9} {'SIGTERM':>9}")
    units = ["ms", "ms", "MiB", "s"]
    missed = 0
    for name in chosen:
        values, failures = try_one(muser, all[name])
        cells = (
            f"{value:.{1 if unit == 's' else 0}f}{'!' if value > bound else ' '}{unit}".rjust(9)
            for (value, bound), unit in zip(values, units)
        )
        bad = bool(failures) or any(value > bound for value, bound in values)
        missed += bad
        print(f"{name:18} {' '.join(cells)}  {'; '.join(failures)[:200]}", flush=True)
    print(f"bounds: {BETWEEN} ms, {HEALTH} ms, {MEMORY + CACHE} MiB, {GRACE + EXIT} s")
    print(f"{len(chosen) - missed} of {len(chosen)} held")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
