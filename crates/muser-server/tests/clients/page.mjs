// The page in headless Chromium, over the DevTools protocol: a prompt is typed
// with the keyboard, the answer streams, and a full context is told as an error.
//
//   node page.mjs MUSER CHROMIUM SCREENSHOT.png

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { served } from "./serving.mjs";

const [, , muser, chromium, screenshot] = process.argv;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

class Page {
  static async open(socket) {
    const page = new Page();
    page.socket = new WebSocket(socket);
    page.waiting = new Map();
    page.errors = [];
    await new Promise((done, failed) => { page.socket.onopen = done; page.socket.onerror = failed; });
    page.socket.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (message.method === "Runtime.exceptionThrown") page.errors.push(message.params.exceptionDetails.text);
      page.waiting.get(message.id)?.(message);
    };
    return page;
  }
  next = 1;
  call(method, params = {}) {
    const id = this.next++;
    this.socket.send(JSON.stringify({ id, method, params }));
    return new Promise((done, failed) => this.waiting.set(id, (m) => (m.error ? failed(new Error(m.error.message)) : done(m.result))));
  }
  async eval(expression) {
    const { result, exceptionDetails } = await this.call("Runtime.evaluate", { expression, returnByValue: true });
    assert.ok(!exceptionDetails, exceptionDetails?.text);
    return result.value;
  }
  async until(expression, what) {
    for (let i = 0; i < 600; i++) {
      if (await this.eval(expression)) return;
      await sleep(50);
    }
    assert.fail(`${what}: ${await this.eval("document.body.innerText")}`);
  }
  async type(text) {
    await this.call("Input.insertText", { text });
    for (const type of ["keyDown", "keyUp"]) {
      await this.call("Input.dispatchKeyEvent", { type, key: "Enter", code: "Enter", windowsVirtualKeyCode: 13, text: type === "keyDown" ? "\r" : undefined });
    }
  }
}

const profile = mkdtempSync(join(tmpdir(), "page-"));
const browser = spawn(chromium, ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", `--user-data-dir=${profile}`, "about:blank"], { stdio: ["ignore", "ignore", "pipe"] });
try {
  const socket = await new Promise((done, failed) => {
    browser.on("exit", () => failed(new Error("the browser ended")));
    createInterface({ input: browser.stderr }).on("line", (line) => {
      const found = /DevTools listening on (ws:\S+)/.exec(line);
      if (found) done(found[1]);
    });
  });
  await served(muser, async (address) => {
    const port = new URL(socket).port;
    const target = await (await fetch(`http://127.0.0.1:${port}/json/new?${encodeURIComponent(address)}`, { method: "PUT" })).json();
    const page = await Page.open(target.webSocketDebuggerUrl);
    await page.call("Runtime.enable");
    await page.call("Page.enable");
    // A phone's screen.
    await page.call("Emulation.setDeviceMetricsOverride", { width: 390, height: 780, deviceScaleFactor: 2, mobile: true });
    await page.until("document.activeElement?.id === 'text'", "the field has the focus");
    await page.until("document.getElementById('model').textContent !== 'muser'", "the model's name is shown");
    await page.eval("document.getElementById('seed').value = 7; document.getElementById('most').value = 120");

    await page.type("Tell me a story about a brave little rabbit.");
    await page.until("document.querySelector('.assistant')?.textContent.length > 10", "the answer begins");
    const early = await page.eval("document.querySelector('.assistant').textContent.length");
    await page.until("!document.getElementById('send').disabled", "the answer ends");
    const late = await page.eval("document.querySelector('.assistant').textContent.length");
    assert.ok(late > early, `it streams: ${early}, then ${late}`);
    assert.match(await page.eval("document.getElementById('speed').textContent"), /tokens\/s/);
    assert.equal(await page.eval("document.querySelectorAll('.error').length"), 0);
    assert.ok(await page.eval("document.documentElement.scrollWidth <= innerWidth"), "fits a phone");
    const { data } = await page.call("Page.captureScreenshot", { format: "png" });
    writeFileSync(screenshot, Buffer.from(data, "base64"));
    console.log("ok the answer streams");

    await page.type("word ".repeat(1000));
    await page.until("document.querySelector('.error')", "a full context is told");
    assert.match(await page.eval("document.querySelector('.error').textContent"), /context/);
    console.log("ok a full context is an error");

    await page.eval("document.getElementById('reset').click(); document.getElementById('most').value = ''");
    await page.type("And now a story about the rain.");
    await page.until("document.querySelector('.assistant')?.textContent.length > 10", "it goes on");
    for (const type of ["keyDown", "keyUp"]) await page.call("Input.dispatchKeyEvent", { type, key: "Escape", code: "Escape", windowsVirtualKeyCode: 27 });
    await page.until("!document.getElementById('send').disabled", "Escape stops an answer");
    assert.deepEqual(page.errors, []);
    console.log("ok it goes on, and Escape stops it");
  }, "--ctx", "512");
} finally {
  browser.removeAllListeners("exit");
  browser.kill("SIGKILL");
  await new Promise((done) => browser.on("close", done));
  rmSync(profile, { recursive: true, force: true });
}
