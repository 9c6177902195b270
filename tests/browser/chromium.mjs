// Starts Debian's Chromium with a home of its own, so that no test sees another's certificates or caches, and
// kept from every network but loopback.

import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const PROGRAM = process.env.FULMAR_CHROMIUM ?? "/usr/bin/chromium";

/** A name that leads to this machine and that no certificate of the tests mentions. */
export const NAME = "app.test";

const ALWAYS = [
  "--no-sandbox",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--no-first-run",
  `--host-resolver-rules=MAP ${NAME} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost`,
];

/** What makes Chromium take a certificate; each is a line of the table in docs/certificates.md. */
export const trust = {
  nothing: () => ({}),
  /** The authority is installed where Chromium on Linux looks. */
  installed: (server) => ({ authority: server.authority }),
  /** The server's public key is named on the command line. */
  keyNamed: (server) => ({ flags: [`--ignore-certificate-errors-spki-list=${server.spki()}`] }),
  authorityNamed: (server) => ({ flags: [`--ignore-certificate-errors-spki-list=${server.spki(server.authority)}`] }),
  errorsIgnored: () => ({ flags: ["--ignore-certificate-errors"] }),
};

/** A browser; `flags` more of its command line, `authority` a certificate to install. */
export async function launch({ flags = [], authority = undefined } = {}) {
  const home = mkdtempSync(join(tmpdir(), "fulmar-chromium-"));
  if (authority) {
    const store = join(home, ".pki", "nssdb");
    mkdirSync(store, { recursive: true });
    const certutil = (...words) => execFileSync("certutil", ["-d", `sql:${store}`, ...words]);
    certutil("-N", "--empty-password");
    certutil("-A", "-t", "C,,", "-n", "fulmar", "-i", authority);
  }
  const browser = await chromium.launch({
    executablePath: PROGRAM,
    args: [...ALWAYS, ...flags],
    env: { ...process.env, HOME: home },
  });
  browser.on("disconnected", () => rmSync(home, { recursive: true, force: true, maxRetries: 5 }));
  return browser;
}

/** By which protocol the page itself came, in the browser's own words: `h3`, `h2`, `http/1.1`. */
export function protocolOfPage(page) {
  return page.evaluate(() => performance.getEntriesByType("navigation")[0].nextHopProtocol);
}

/** The same of something the page fetches now. */
export function protocolOf(page, path) {
  return page.evaluate(async (wanted) => {
    const url = new URL(wanted, location.href).href;
    performance.clearResourceTimings();
    await (await fetch(url, { cache: "no-store" })).arrayBuffer();
    for (;;) {
      const entry = performance.getEntriesByName(url).at(-1);
      if (entry) return entry.nextHopProtocol;
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }, path);
}

/**
 * Opens a WebTransport session in the page and says CONNECT (MQTT 3.1.1) on its stream; `connack` holds the first
 * bytes that come back, or `error` what the browser says went wrong. The session stays as `window.session`.
 */
export function mqttOverWebTransport(page, url, hashes) {
  return page.evaluate(
    async ([url, hashes]) => {
      const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
      const options = hashes.length
        ? { serverCertificateHashes: hashes.map((hash) => ({ algorithm: "sha-256", value: bytes(hash) })) }
        : {};
      try {
        const session = new WebTransport(url, options);
        session.closed.catch(() => {});
        await session.ready;
        window.session = session;
        const stream = await session.createBidirectionalStream();
        const writer = stream.writable.getWriter();
        await writer.write(new Uint8Array([0x10, 13, 0, 4, 77, 81, 84, 84, 4, 2, 0, 60, 0, 1, 112]));
        const { value } = await stream.readable.getReader().read();
        return { connack: [...value] };
      } catch (error) {
        return { error: `${error.name}: ${error.message}` };
      }
    },
    [url, hashes],
  );
}

/** The same over WebSocket. */
export function mqttOverWebSocket(page, url) {
  return page.evaluate(
    (url) =>
      new Promise((resolve) => {
        const socket = new WebSocket(url, "mqtt");
        socket.binaryType = "arraybuffer";
        socket.onopen = () =>
          socket.send(new Uint8Array([0x10, 13, 0, 4, 77, 81, 84, 84, 4, 2, 0, 60, 0, 1, 113]));
        socket.onmessage = ({ data }) => resolve({ connack: [...new Uint8Array(data)] });
        socket.onerror = () => resolve({ error: "WebSocket" });
      }),
    url,
  );
}

/**
 * Where there is no network, `setOffline` is for pages: the browser itself would still send what waits, through the
 * app's service worker.
 */
export async function noBackgroundSync(browser, page) {
  const { targetInfo } = await (await page.context().newCDPSession(page)).send("Target.getTargetInfo");
  const { browserContextId } = targetInfo;
  const permission = { permission: { name: "background-sync" }, setting: "denied", browserContextId };
  await (await browser.newBrowserCDPSession()).send("Browser.setPermission", permission);
}

/** Where pictures for the documentation go, if they are wanted. */
export const PICTURES = process.env.FULMAR_SCREENSHOTS;

export async function picture(page, name) {
  if (!PICTURES) return;
  mkdirSync(PICTURES, { recursive: true });
  await page.screenshot({ path: join(PICTURES, `${name}.png`) });
}
