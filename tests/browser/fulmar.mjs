// Starts the fulmar program for a test, on free ports of loopback, and stops it by process id.

import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

export const PATIENCE_MS = Number(process.env.FULMAR_PATIENCE_S ?? 60) * 1000;

export const BINARY = process.env.FULMAR_BIN ?? "fulmar";
const LISTENERS = ["mqtt", "mqtts", "ws", "quic", "https", "webtransport", "http", "coap", "coaps"];
const EXAMPLE = readFileSync(new URL("../../fulmar.example.toml", import.meta.url), "utf8");
/** What a program has that somebody runs beside the tests. */
const DEFAULT_PORTS = [...EXAMPLE.matchAll(/^\w+ = \["127\.0\.0\.1:([1-9]\d*)"(?:, "\[::1\]:\1")?\]$/gm)].map(([, port]) => Number(port));

/** Waits until `done()` gives something true, which it returns; fails with `what` when that takes too long. */
export async function eventually(what, done, patienceMs = PATIENCE_MS) {
  const end = Date.now() + patienceMs;
  for (;;) {
    const result = await done();
    if (result) return result;
    if (Date.now() > end) throw new Error(`waited too long for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Makes an admin of the server, and waits until the server knows: until then its address is no app. */
export async function addUser(server) {
  const words = ["user", "add", "ann", "--admin", "--data", server.data];
  execFileSync(BINARY, words, { input: "correct horse\n" });
  const curl = ["-sS", "--cacert", server.authority, `https://127.0.0.1:${server.port("https")}/`];
  await eventually("the app", () => execFileSync("curl", curl, { encoding: "utf8" }).includes("webmanifest"));
}

export class Server {
  /** `arguments_` go behind the program's name; without any it serves with `settings` (TOML). */
  static async start({ settings = "", command = undefined, addresses = {} } = {}) {
    const server = new Server();
    server.data = mkdtempSync(join(tmpdir(), "fulmar-browser-"));
    const listeners = LISTENERS.map((name) => `${name} = ["${addresses[name] ?? "127.0.0.1:0"}"]`);
    const config = join(server.data, "fulmar.toml");
    writeFileSync(config, `[listeners]\n${listeners.join("\n")}\n${settings}`);
    const words = command?.(server.data) ?? ["serve", "--config", config, "--data", server.data];
    server.process = spawn(BINARY, words, { stdio: ["ignore", "pipe", "pipe"] });
    server.log = "";
    server.printed = [];
    server.process.stderr.on("data", (text) => (server.log += text));
    const lines = createInterface({ input: server.process.stdout });
    let ended = false;
    server.process.on("exit", () => (ended = true));
    lines.on("line", (line) => server.printed.push(line));
    await eventually("the ready line", () => {
      if (ended) throw new Error(`it ended:\n${server.log}`);
      return server.printed.some((line) => line.startsWith("ready "));
    });
    const ready = server.printed.find((line) => line.startsWith("ready "));
    server.bound = Object.fromEntries(ready.split(" ").slice(1).map((word) => word.split(/=(.*)/s)));
    const isDefault = Object.keys(server.bound).filter((listener) => DEFAULT_PORTS.includes(server.port(listener)));
    if (isDefault.length > 0) throw new Error(`default ports in a test: ${isDefault.join(", ")}`);
    return server;
  }

  port(listener) {
    return Number(this.bound[listener].split(":").at(-1));
  }

  /** Figures of `/metrics`, by name and labels. */
  async metrics() {
    const text = await (await fetch(`http://${this.bound.http}/metrics`)).text();
    const lines = text.split("\n").filter((line) => line && !line.startsWith("#"));
    return Object.fromEntries(lines.map((line) => [line.slice(0, line.lastIndexOf(" ")), Number(line.split(" ").at(-1))]));
  }

  get authority() {
    return join(this.data, "ca", "ca.pem");
  }

  /** Base64 of SHA-256 of the public key of a certificate file's first certificate, as Chromium wants it. */
  spki(file = join(this.data, "ca", "server.pem")) {
    const shell =
      'openssl x509 -in "$0" -pubkey -noout | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary | base64';
    return execFileSync("sh", ["-c", shell, file], { encoding: "utf8" }).trim();
  }

  /** Base64 of SHA-256 of a certificate, as `serverCertificateHashes` wants it. */
  hash(file = join(this.data, "ca", "server.pem")) {
    const shell = 'openssl x509 -in "$0" -outform der | openssl dgst -sha256 -binary | base64';
    return execFileSync("sh", ["-c", shell, file], { encoding: "utf8" }).trim();
  }

  async close() {
    if (this.process.exitCode === null && this.process.signalCode === null) {
      const exited = new Promise((resolve) => this.process.once("exit", resolve));
      this.process.kill("SIGTERM");
      const late = setTimeout(() => this.process.kill("SIGKILL"), 15_000);
      await exited;
      clearTimeout(late);
    }
    rmSync(this.data, { recursive: true, force: true });
  }

  read(name) {
    return readFileSync(join(this.data, name), "utf8");
  }
}
