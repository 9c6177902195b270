// The whole chain, as its users see it: `fulmar demo meters`, a reader in the field with a phone, the office at its
// desk. Page and API over HTTP/3, MQTT over WebTransport; then the same with UDP blocked.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { TcpOnly } from "./blocked.mjs";
import { launch, noBackgroundSync, picture, protocolOf, protocolOfPage, trust } from "./chromium.mjs";
import { PATIENCE_MS, Server, eventually } from "./fulmar.mjs";

const METERS = 400;
const PHONE = { width: 360, height: 740 };
const DESK = { width: 1280, height: 800 };

let demo;
const passwords = {};
before(async () => {
  const words = (data) => ["demo", "meters", "--port", "0", "--meters", String(METERS), "--data", data];
  demo = await Server.start({ command: words });
  for (const line of demo.printed) {
    const [, name, password] = line.match(/^ {2}(reader|office|admin) +(\w{12}) /) ?? [];
    if (name) passwords[name] = password;
  }
  assert.equal(Object.keys(passwords).length, 3, demo.printed.join("\n"));
});
after(() => demo?.close());

const local = (port) => `https://127.0.0.1:${port}`;

async function open(t, { flags = [], port = demo.port("https"), viewport = PHONE } = {}) {
  const browser = await launch({ ...trust.installed(demo), flags });
  t.after(() => browser.close());
  const context = await browser.newContext({ viewport });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  await noBackgroundSync(browser, page);
  await page.goto(`${local(port)}/`);
  return page;
}

async function logIn(page, user) {
  await page.fill("#user", user);
  await page.fill("#password", passwords[user]);
  await page.click('[data-testid="login"] button[type="submit"]');
  await page.waitForSelector('[data-testid="login"]', { state: "detached" });
}

/** Asks the API in the page, as whoever is given. */
function ask(page, user, path) {
  return page.evaluate(
    async ([user, password, path]) => {
      const body = JSON.stringify({ user, password });
      const headers = { "content-type": "application/json" };
      const session = await (await fetch("/api/v1/session", { method: "POST", headers, body })).json();
      const response = await fetch(path, { headers: { authorization: `Bearer ${session.token}` }, cache: "no-store" });
      return response.json();
    },
    [user, passwords[user], path],
  );
}

const TWIN = "/api/v1/gullhaven";

/** Reads the next open meters of the list that is read by hand; which, and what was typed. */
async function read(page, count, photo) {
  const taken = [];
  for (let number = 0; number < count; number++) {
    const meter = decodeURIComponent(new URL(page.url()).pathname.split("/").at(-1));
    const hint = await page.textContent("#value-hint");
    const low = Number(hint.match(/Expected ([\d,.]+)/)[1].replaceAll(",", ""));
    const value = Math.round((low + 0.1 + number / 10) * 1000) / 1000;
    await page.fill("#value", String(value));
    if (photo) {
      await page.setInputFiles('[data-testid="photo"]', { name: "meter.png", mimeType: "image/png", buffer: photo });
      await page.waitForSelector(".photo-input img");
    }
    await page.click('[data-testid="read"] button[type="submit"]');
    // It goes on to the next meter of the list by itself.
    await page.waitForFunction((last) => !location.pathname.endsWith(last), encodeURIComponent(meter));
    taken.push({ meter, value, how: photo ? "Photo" : "by hand" });
  }
  return taken;
}

async function openList(page) {
  await page.click('nav.tabs [data-testid="nav-lists"]');
  await page.click('text="Cellars, by hand"');
  await page.click('[data-testid="tasks"] a >> nth=0');
  await page.waitForSelector("#value-hint");
}

/** What the office finds: each of these once, with these values. */
async function storedOnce(page, taken) {
  for (const { meter, value } of taken) {
    const { items } = await ask(page, "office", `${TWIN}/reading?meter=${encodeURIComponent(meter)}&since=${since}`);
    const values = items.map((reading) => reading.value);
    assert.deepEqual(values, [value], `${meter}: ${JSON.stringify(items)}`);
  }
}

/** What the office's page of readings shows, newest first; `filter` is what its filters are set to. */
async function officeReadings(office, filter) {
  await office.click('nav [data-testid="nav-readings"] >> visible=true');
  for (const [label, choice] of Object.entries(filter)) await office.getByLabel(label).selectOption({ label: choice });
  await office.waitForSelector('[data-testid="readings"]');
  return office.$$eval('[data-testid="readings"] tbody tr', (rows) =>
    rows.map((row) => {
      const cell = (name) => row.querySelector(`[data-label="${name}"]`).textContent.trim();
      const meter = decodeURIComponent(row.querySelector("a").pathname.split("/").at(-1));
      return { meter, value: cell("Value"), at: cell("Read"), how: cell("Method"), by: cell("By"), state: cell("State") };
    }),
  );
}

const shown = (value) => `${value.toLocaleString("en-GB", { maximumFractionDigits: 3 })} m³`;

/** On the page: each of these once, with these values, and by which of these ways. */
async function officeSeesOnce(office, taken) {
  await eventually("every reading on the office's page", async () => {
    const rows = await officeReadings(office, { "Work list": "Cellars, by hand" });
    return taken.every(({ meter }) => rows.some((row) => row.meter === meter));
  });
  const rows = await officeReadings(office, { "Work list": "Cellars, by hand" });
  for (const { meter, value, how } of taken) {
    const found = rows.filter((row) => row.meter === meter).map(({ value, how, by, state }) => ({ value, how, by, state }));
    assert.deepEqual(found, [{ value: shown(value), how, by: "reader", state: "ok" }], meter);
  }
}

const since = new Date(Date.now() - 60_000).toISOString();
const nothingPending = (page) =>
  eventually("an empty outbox", async () => {
    await page.click('nav.tabs [data-testid="nav-pending"]');
    return page.getByText("Everything is sent").isVisible();
  });

test("a reader's day: map, radio, readings, no network, and the office has each reading once", async (t) => {
  const page = await open(t, { flags: [`--origin-to-force-quic-on=127.0.0.1:${demo.port("https")}`] });
  assert.equal(await protocolOfPage(page), "h3");
  await logIn(page, "reader");
  assert.equal(await protocolOf(page, "/api/v1/config"), "h3");
  await page.waitForSelector('[data-testid="cluster"]');
  await eventually("all meters", async () => (await page.textContent('[data-testid="map-count"]')).includes(`${METERS} meters`));
  await picture(page, "phone-map");
  const taken = [];
  await openList(page);
  taken.push(...(await read(page, 1)));
  await picture(page, "phone-reading");
  taken.push(...(await read(page, 1, await page.screenshot())));
  await nothingPending(page);
  await openList(page);
  await page.context().setOffline(true);
  taken.push(...(await read(page, 2)));
  await page.click('nav.tabs [data-testid="nav-pending"]');
  await eventually("both in the outbox", async () => (await page.textContent('[data-testid="pending-count"]')) === "2");
  await picture(page, "phone-offline");
  await page.context().setOffline(false);
  await nothingPending(page);
  await storedOnce(page, taken);
  const office = await open(t, { viewport: DESK, flags: [`--origin-to-force-quic-on=127.0.0.1:${demo.port("https")}`] });
  await logIn(office, "office");
  await officeSeesOnce(office, taken);
  await picture(office, "desk-readings");
  // What comes in later is there without asking.
  await openList(page);
  taken.push(...(await read(page, 1)));
  await officeSeesOnce(office, taken);
  await office.click('[data-testid="readings"] button:has-text("Photo")');
  await eventually("the photo", () => office.$eval("img.photo", ({ naturalWidth }) => naturalWidth > 0).catch(() => false));
  const figures = await demo.metrics();
  assert.equal(figures['fulmar_http_requests_total{version="2",status="2xx"}'], 0, "all of it came over HTTP/3");
  assert.equal(figures['fulmar_http_requests_total{version="1.1",status="2xx"}'], 0);
});

test("what the van hears comes live over WebTransport, and the office sees it decoded once", async (t) => {
  const page = await open(t);
  await logIn(page, "reader");
  await page.click('nav.tabs [data-testid="nav-radio"]');
  const heard = () => page.textContent('[data-testid="heard-count"]');
  await eventually("a frame", async () => Number(await heard()) > 20);
  await picture(page, "app-drive");
  // The longest name of a street must not push what is beside it out of the screen, which cannot be scrolled there.
  const beyond = () =>
    page.$$eval('[data-testid="drive"] > :first-child *', (all) => {
      const address = all.find((element) => element.matches('[data-testid="last-heard"] strong'));
      address.textContent = "Great Northern Diver Promenade 128";
      return all.map((element) => element.getBoundingClientRect().right - innerWidth).filter((px) => px > 0);
    });
  assert.deepEqual(await beyond(), []);
  assert.ok((await demo.metrics())['fulmar_connections{transport="webtransport"}'] >= 1);
  assert.equal((await demo.metrics())['fulmar_connections{transport="wss"}'], 0);
  const { items } = await ask(page, "office", `${TWIN}/reading?method=radio&since=${since}&limit=1000`);
  assert.ok(items.length >= 20);
  const each = new Set(items.map(({ meter, at }) => `${meter} ${at}`));
  assert.equal(each.size, items.length, "none twice");
  assert.ok(items.every(({ value, unit }) => value > 0 && unit === "m3"));
  // The same on the office's page.
  const office = await open(t, { viewport: DESK });
  await logIn(office, "office");
  const first = await officeReadings(office, { Method: "Radio" });
  const isDecoded = ({ value, how }) => /^[\d,]+(\.\d{1,3})? m³$/.test(value) && how.startsWith("radio");
  assert.ok(first.length >= 20 && first.every(isDecoded), JSON.stringify(first.slice(0, 5)));
  const ids = await office.$$eval('[data-testid="readings"] tbody a', (links) => links.map((link) => link.pathname));
  assert.ok(new Set(ids).size >= 20, "of many meters");
  const [{ meter, value }] = items;
  assert.ok(first.some((row) => row.meter === meter && row.value === shown(value)), `${meter} ${value}`);
  await picture(office, "desk-radio");
});

test("with UDP blocked the reader works as well", async (t) => {
  const way = await TcpOnly.before(demo.port("https"));
  t.after(() => way.close());
  // The other UDP port leads into the same void.
  const gone = `--host-resolver-rules=MAP 127.0.0.1:${demo.port("webtransport")} 127.0.0.1:${way.port}`;
  const page = await open(t, { port: way.port, flags: [gone] });
  assert.equal(await protocolOfPage(page), "h2");
  await logIn(page, "reader");
  await page.click('nav.tabs [data-testid="nav-radio"]');
  await eventually("a frame", async () => Number(await page.textContent('[data-testid="heard-count"]')) > 0);
  assert.equal((await demo.metrics())['fulmar_connections{transport="wss"}'], 1);
  await openList(page);
  const taken = await read(page, 1);
  await nothingPending(page);
  await storedOnce(page, taken);
});

test("the office sees the town at its desk", async (t) => {
  const page = await open(t, { viewport: DESK });
  await logIn(page, "office");
  await page.waitForSelector('[data-testid="cluster"]');
  await picture(page, "desk-map");
});

test("a demonstration that is started again says how to set a password, and that works", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "fulmar-again-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const words = ["demo", "meters", "--port", "0", "--meters", "10", "--link", "none", "--data", folder];
  await (await Server.start({ command: () => words })).close();
  const again = await Server.start({ command: () => words });
  t.after(() => again.close());
  const printed = again.printed.join("\n");
  const [, command] = printed.match(/^ {2}fulmar (user passwd NAME --data .+)$/m) ?? [];
  assert.ok(command, printed);
  const arguments_ = command.split(" ").map((word) => (word === "NAME" ? "office" : word));
  execFileSync(process.env.FULMAR_BIN ?? "fulmar", arguments_, { input: "another password\n" });
  passwords.office = "another password";
  const page = await open(t, { port: again.port("https"), flags: trust.errorsIgnored().flags });
  await logIn(page, "office");
});
