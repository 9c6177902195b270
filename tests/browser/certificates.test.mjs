// Which certificates Chromium takes: every line of the table in docs/certificates.md is tried here, and the
// table is what came out.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { NAME, launch, mqttOverWebTransport, protocolOf, protocolOfPage, trust } from "./chromium.mjs";
import { Server } from "./fulmar.mjs";

const DOCUMENT = new URL("../../docs/certificates.md", import.meta.url);

/** How each line of the table begins, and the browser that is meant. */
const LINES = {
  "nothing was done": trust.nothing,
  "the CA is installed (NSS)": trust.installed,
  "`--ignore-certificate-errors-spki-list=` the server's key": trust.keyNamed,
  "`--ignore-certificate-errors-spki-list=` the CA's key": trust.authorityNamed,
  "`--ignore-certificate-errors`": trust.errorsIgnored,
};

let server;
before(async () => {
  server = await Server.start({ settings: `[tls]\nnames = ["${NAME}"]\n` });
});
after(() => server?.close());

/** The page in such a browser; by what it came twice, or what was wrong. */
async function visit(t, options) {
  const browser = await launch(options);
  t.after(() => browser.close());
  const page = await (await browser.newContext({ serviceWorkers: "block" })).newPage();
  try {
    await page.goto(`https://${NAME}:${server.port("https")}/`);
  } catch (error) {
    return { outcome: error.message.match(/ERR_\w+/)?.[0] ?? error.message };
  }
  await protocolOf(page, "/api/v1/status");
  // By now it has read Alt-Svc and could change over.
  await page.reload();
  return { outcome: await protocolOfPage(page), page };
}

const taken = (result) => (result.connack ? "yes" : "no");

for (const [line, trusted] of Object.entries(LINES)) {
  test(`Chromium, when ${line}`, async (t) => {
    const { flags = [], ...rest } = trusted(server);
    const { outcome, page } = await visit(t, { flags, ...rest });
    const forced = `--origin-to-force-quic-on=${NAME}:${server.port("https")}`;
    const byForce = await visit(t, { flags: [...flags, forced], ...rest });
    const cells = [outcome, byForce.outcome];
    // Where there is no page from this server, there is nothing that could open a session.
    const from = page ?? byForce.page;
    if (from) {
      const config = await from.evaluate(async () => await (await fetch("/api/v1/config")).json());
      const { url, certificate_hashes } = config.mqtt.webtransport;
      const own = `https://${NAME}:${server.port("https")}/mqtt`;
      cells.push(taken(await mqttOverWebTransport(from, own, [])));
      cells.push(taken(await mqttOverWebTransport(from, own, [server.hash()])));
      cells.push(taken(await mqttOverWebTransport(from, url, certificate_hashes)));
    } else {
      cells.push("–", "–", "–");
    }
    const told = readFileSync(DOCUMENT, "utf8").split("\n").find((row) => row.startsWith(`| ${line} |`));
    assert.equal(told, `| ${[line, ...cells].join(" | ")} |`);
  });
}
