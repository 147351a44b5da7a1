// Starts `muser serve` for a test and ends it.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

export async function served(muser, work, ...options) {
  const child = spawn(muser, ["serve", "--quiet", "--port", "0", ...options], { stdio: ["ignore", "pipe", "inherit"] });
  const ended = once(child, "exit");
  try {
    const [line] = await once(createInterface({ input: child.stdout }), "line");
    const address = /listening on (\S+)/.exec(line)?.[1];
    assert.ok(address, `no server: ${line}`);
    await work(address);
  } finally {
    child.kill("SIGTERM");
    const [code] = await ended;
    assert.equal(code, 0, "SIGTERM ends it as it should");
  }
}
