// What makes a page an app: it can be installed, starts without any network, and is small. As Lighthouse checks it,
// with the real server and its certificate; accessibility is in web/tests/browser.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, trust } from "./chromium.mjs";
import { Server, addUser } from "./fulmar.mjs";

const MAX_FIRST_LOAD_BYTES = 250_000;

let server;
before(async () => {
  server = await Server.start();
  await addUser(server);
});
after(() => server?.close());

async function open(t) {
  const browser = await launch(trust.installed(server));
  t.after(() => browser.close());
  const context = await browser.newContext({ viewport: { width: 360, height: 740 } });
  const page = await context.newPage();
  return { page, devtools: await context.newCDPSession(page), address: `https://127.0.0.1:${server.port("https")}/` };
}

test("Chromium would offer to install it", async (t) => {
  const { page, devtools, address } = await open(t);
  await page.goto(address);
  await page.evaluate(() => navigator.serviceWorker.ready);
  const { installabilityErrors } = await devtools.send("Page.getInstallabilityErrors");
  assert.deepEqual(installabilityErrors.filter(({ errorId }) => errorId !== "in-incognito"), []);
  const manifest = await page.evaluate(async () => {
    const response = await fetch(document.querySelector("link[rel=manifest]").href);
    const fields = await response.json();
    const size = async ({ src, type }) => {
      const icon = await fetch(src);
      if (icon.headers.get("content-type") !== type) return 0;
      return (await createImageBitmap(await icon.blob()).catch(() => null))?.width ?? 0;
    };
    return { ...fields, type: response.headers.get("content-type"), sizes: await Promise.all(fields.icons.map(size)) };
  });
  assert.match(manifest.type, /^application\/manifest\+json/);
  assert.ok(manifest.name && manifest.short_name && manifest.start_url && manifest.id !== "");
  assert.ok(["standalone", "fullscreen", "minimal-ui"].includes(manifest.display), manifest.display);
  assert.match(manifest.theme_color, /^#/);
  assert.match(manifest.background_color, /^#/);
  assert.ok(manifest.sizes.includes(192) && manifest.sizes.includes(512), `icons of ${manifest.sizes} pixels`);
  assert.ok(manifest.icons.some(({ purpose }) => purpose?.includes("maskable")));
  const head = await page.evaluate(() => ({
    lang: document.documentElement.lang,
    viewport: document.querySelector("meta[name=viewport]")?.content,
    description: document.querySelector("meta[name=description]")?.content,
    theme: document.querySelector("meta[name=theme-color]")?.content,
    touchIcon: document.querySelector("link[rel=apple-touch-icon]")?.href,
    title: document.title,
  }));
  assert.ok(Object.values(head).every(Boolean), JSON.stringify(head));
  assert.match(head.viewport, /width=device-width/);
  assert.doesNotMatch(head.viewport, /user-scalable=no|maximum-scale/);
});

test("it starts without a network once it was opened", async (t) => {
  const { page, address } = await open(t);
  await page.goto(address);
  await page.evaluate(() => navigator.serviceWorker.ready);
  await page.waitForFunction(() => navigator.serviceWorker.controller);
  await page.context().setOffline(true);
  for (const path of ["", "lists", "pending"]) {
    const response = await page.goto(address + path);
    assert.equal(response.status(), 200, `/${path}`);
    assert.ok(response.fromServiceWorker());
    await page.waitForSelector('[data-testid="login"]');
  }
});

test("the first load is small", async (t) => {
  const { page, devtools, address } = await open(t);
  const loaded = new Map();
  let bytes = 0;
  await devtools.send("Network.enable");
  devtools.on("Network.responseReceived", ({ requestId, response }) => loaded.set(requestId, response));
  devtools.on("Network.loadingFinished", ({ encodedDataLength }) => (bytes += encodedDataLength));
  await page.goto(address, { waitUntil: "networkidle" });
  await page.waitForSelector('[data-testid="login"]');
  const responses = [...loaded.values()];
  t.diagnostic(`${bytes} bytes in ${responses.length} responses`);
  assert.ok(bytes > 10_000 && bytes < MAX_FIRST_LOAD_BYTES, `${bytes} bytes`);
  const header = (response, name) => Object.entries(response.headers).find(([key]) => key.toLowerCase() === name)?.[1];
  const texts = responses.filter(({ mimeType, url }) => /html|javascript|css/.test(mimeType) && url.startsWith(address));
  assert.ok(texts.length >= 3);
  for (const text of texts) assert.match(header(text, "content-encoding") ?? "none", /^(br|gzip)$/, text.url);
});
