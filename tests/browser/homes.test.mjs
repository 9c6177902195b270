// Homes, as those who look after them see it: `fulmar demo homes`, whose gateway loses its link for a while. What the
// sensors were told was taken is compared with what the platform has.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { PICTURES, launch, picture, trust } from "./chromium.mjs";
import { PATIENCE_MS, Server, eventually } from "./fulmar.mjs";

const PHONE = { width: 360, height: 740 };
const DESK = { width: 1280, height: 800 };
const EVERY_S = 2;
/** Longer than a page may be silent that hears nothing meanwhile; begins when a browser on a busy machine has long been open. */
const OUTAGE_S = Number(process.env.FULMAR_OUTAGE_S ?? 75);
/** How long the link stays up. If that is too short for what a slow machine does meanwhile, the next is tried. */
const UP_S = [40, 160, 640];
/** The gateway has that much to send when the link is back. */
const CATCH_UP_MS = PATIENCE_MS + OUTAGE_S * 1000;
/** What the broker lets a page be silent for: one and a half times its keep alive. */
const SILENCE_S = 45;
const TWIN = "/api/v1/rural";

let demo;
const passwords = {};
async function start(upS) {
  const outage = ["--outage-after", String(upS), "--outage", String(OUTAGE_S)];
  const words = ["demo", "homes", "--port", "0", "--every", String(EVERY_S), "--history", "2", ...outage];
  demo = await Server.start({ command: (data) => [...words, "--data", data] });
  for (const line of demo.printed) {
    const [, name, password] = line.match(/^ {2}(home|viewer|admin) +(\w{12}) /) ?? [];
    if (name) passwords[name] = password;
  }
  assert.equal(Object.keys(passwords).length, 3, demo.printed.join("\n"));
}
before(() => start(UP_S[0]));
after(() => demo?.close());

/** The same page at a desk and on a phone, with its curve in view. */
async function pictures(page, name) {
  if (!PICTURES) return;
  for (const [where, viewport] of Object.entries({ phone: PHONE, desk: DESK })) {
    await page.setViewportSize(viewport);
    await page.getByTestId("chart").scrollIntoViewIfNeeded();
    await picture(page, `${name}-${where}`);
  }
}

async function open(t, user, viewport, colorScheme = "light") {
  const browser = await launch(trust.installed(demo));
  t.after(() => browser.close());
  const context = await browser.newContext({ viewport, colorScheme });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  await page.goto(`https://127.0.0.1:${demo.port("https")}/`);
  await page.fill("#user", user);
  await page.fill("#password", passwords[user]);
  await page.click('[data-testid="login"] button[type="submit"]');
  await page.waitForSelector('[data-testid="home"]');
  return page;
}

/** A token of this user, and what the API answers to whoever has it. */
async function asked(page, user) {
  const token = await page.evaluate(
    async (body) => {
      const headers = { "content-type": "application/json" };
      return (await (await fetch("/api/v1/session", { method: "POST", headers, body })).json()).token;
    },
    JSON.stringify({ user, password: passwords[user] }),
  );
  const call = (path, method = "GET", json = undefined) =>
    page.evaluate(
      async ([path, method, body, token]) => {
        const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
        const answer = await fetch(path, { method, headers, body, cache: "no-store" });
        return { status: answer.status, json: await answer.json().catch(() => null) };
      },
      [TWIN + path, method, json && JSON.stringify(json), token],
    );
  const ask = async (path) => (await call(path)).json;
  return { token, ask, call };
}

/** As a link in the page would, without loading it again. */
async function go(page, path) {
  await page.evaluate((to) => {
    history.pushState(null, "", to);
    dispatchEvent(new PopStateEvent("popstate"));
  }, path);
}

/** What arrives at the platform's broker from now on: times in order of arrival, by topic. */
function arrivals(t, token) {
  const url = `quic://127.0.0.1:${demo.port("quic")}`;
  const words = ["sub", url, "-u", "home", "-q", "1", "-t", "fulmar/rural/sensor/+/+", "-F", "%t %p"];
  const env = { ...process.env, FULMAR_PASSWORD: token };
  const client = spawn(process.env.FULMAR_BIN ?? "fulmar", [...words, "--cafile", demo.authority], { env });
  t.after(() => client.kill());
  const topics = new Map();
  createInterface({ input: client.stdout }).on("line", (line) => {
    const [topic, payload] = line.split(/ (.*)/s);
    topics.set(topic, [...(topics.get(topic) ?? []), JSON.parse(payload).at]);
  });
  return topics;
}

/** What the gateway took from the sensors, by device and quantity. */
function recorded() {
  const series = new Map();
  // The last line may be half written.
  for (const line of demo.read("sensors.jsonl").split("\n").slice(0, -1)) {
    const { device, quantity, at, value } = JSON.parse(line);
    const key = `${device}/${quantity}`;
    series.set(key, [...(series.get(key) ?? []), [at, value]]);
  }
  return series;
}

test("live values, a radon alert, and an outage whose readings all arrive once and in order", async (t) => {
  const { page, ask, arrived, upS } = await untilTheOutage(t);
  await eventually("the outage", isDown, upS * 1000 + PATIENCE_MS);
  const timeout = OUTAGE_S * 1000;
  await page.waitForSelector('[data-testid="curve-note"][data-silent="true"]', { timeout });
  await page.waitForSelector(".reading.stale");
  await pictures(page, "homes-outage");
  const lastBefore = recorded();
  await eventually("its end", () => demo.log.includes("The link is up again."), timeout + PATIENCE_MS);
  await page.waitForSelector('[data-testid="curve-note"][data-silent="false"]', { timeout: CATCH_UP_MS });
  await pictures(page, "homes-caught-up");
  assert.ok(OUTAGE_S > SILENCE_S);
  const ways = await page.evaluate(() => window.ways);
  assert.equal(ways.length, 1, `only the gateway was cut off, not the page: ${ways.join(", ")}`);

  await everythingOnce(ask);
  for (const [key, taken] of lastBefore) {
    const times = () => arrived.get(`fulmar/rural/sensor/${key}`) ?? [];
    // The platform may have stored what this client has not printed yet.
    await eventually(`${key} to go on`, () => times().at(-1) > taken.at(-1)[0]);
    assert.deepEqual(times(), [...times()].sort(), `${key} in order`);
  }
});

const isDown = () => demo.log.includes("The link is down.");

/** Does what needs the link, with a new demonstration each time that the link was down before it was done. */
async function untilTheOutage(t) {
  for (const upS of UP_S) {
    if (upS !== UP_S[0]) {
      await demo.close();
      await start(upS);
    }
    const page = await open(t, "home", DESK);
    try {
      const done = await whileTheLinkIsUp(t, page);
      if (!isDown()) return { page, upS, ...done };
    } catch (error) {
      if (!isDown()) throw error;
    }
    await page.context().browser().close();
  }
  throw new Error(`${UP_S.at(-1)} s were not enough until the outage`);
}

async function whileTheLinkIsUp(t, page) {
  const { token, ask } = await asked(page, "home");
  const arrived = arrivals(t, token);
  assert.equal(await page.locator('[data-testid="home"]').count(), 20);
  await eventually("a live connection", () => page.getAttribute('[data-testid="status"]', "data-live").then((how) => /web/.test(how)));

  // From now on: how the page hears of what is new, each time that changes.
  await page.evaluate(() => {
    const status = document.querySelector('[data-testid="status"]');
    window.ways = [status.dataset.live];
    new MutationObserver(() => window.ways.push(status.dataset.live)).observe(status, { attributeFilter: ["data-live"] });
  });

  // A value changes without the page being loaded again.
  const temperature = page.locator('[data-home="home-01"] [data-testid="value-temperature"]').first();
  const earlier = await temperature.getAttribute("data-at");
  await eventually("a newer value", async () => (await temperature.getAttribute("data-at")) > earlier);
  await page.waitForSelector('[data-testid="map"][data-ready="true"]');
  await picture(page, "homes-desk");

  await go(page, "/alerts");
  const radon = page.locator('[data-testid="alert"][data-quantity="radon"]').first();
  await radon.waitFor();
  await picture(page, "homes-alerts");
  const before = await ask("/alert?state=active&limit=1000");
  assert.ok(before.items.some((alert) => alert.quantity === "radon" && alert.threshold === 300));
  await radon.getByTestId("acknowledge").click();
  await page.fill("#ack-note", "A fan is ordered");
  await page.getByRole("dialog").getByRole("button", { name: "Acknowledge", exact: true }).click();
  await page.getByText("“A fan is ordered”").waitFor();
  const acknowledged = await ask("/alert?state=acknowledged&limit=1000");
  assert.deepEqual(
    acknowledged.items.map((alert) => [alert.quantity, alert.acknowledged_by, alert.note]),
    [["radon", "home", "A fan is ordered"]],
  );

  await go(page, "/homes/home-01");
  await page.waitForSelector('[data-testid="chart"][data-ready="true"]');
  await page.getByText("Hour", { exact: true }).click();
  return { ask, arrived };
}

/** Each series of the platform is what the sensors were told was taken: the same values at the same times. */
async function everythingOnce(ask) {
  const taken = recorded();
  assert.ok(taken.size >= 20 * 6 - 4, `${taken.size} series`);
  const first = [...taken.values()].map(([[at]]) => at).sort()[0];
  for (const [key, expected] of taken) {
    const [device, quantity] = key.split("/");
    const last = expected.at(-1)[0];
    const until = new Date(Date.parse(last) + 1).toISOString();
    const path = `/series?device=${device}&quantity=${quantity}&from=${first}&to=${until}&step=raw`;
    let stored = [];
    await eventually(`${key} to catch up`, async () => {
      stored = (await ask(path)).points.map(({ at, value }) => [at, value]);
      return stored.at(-1)?.[0] >= last;
    }, CATCH_UP_MS);
    assert.deepEqual(stored, expected, key);
  }
}

test("a sensor that nobody has assigned is given a home", async (t) => {
  const page = await open(t, "home", DESK);
  const { ask } = await asked(page, "home");
  await page.click('nav.side [data-testid="nav-sensors"]');
  await page.getByRole("button", { name: "Assign home-20-boiler" }).click();
  const { items } = await ask("/home?limit=1000");
  const last = items.find((home) => home.id === "home-20");
  await page.selectOption("#sensor-home", last.id);
  await page.fill("#sensor-room", "boiler room");
  await page.getByRole("dialog").getByRole("button", { name: "Save" }).click();
  await page.getByRole("dialog").waitFor({ state: "detached" });
  assert.equal((await ask("/sensor/home-20-boiler")).home, "home-20");
  await picture(page, "homes-sensors");
});

test("an admin removes a sensor with its readings, after a question; a viewer cannot", async (t) => {
  const page = await open(t, "admin", DESK);
  const { ask, call } = await asked(page, "admin");
  const probe = "/sensor/old-probe";
  const send = async (minutesAgo) => {
    const times = minutesAgo.map((minutes) => new Date(Date.now() - minutes * 60_000).toISOString());
    const items = times.map((at) => ({ device: "old-probe", quantity: "co2", unit: "ppm", value: 2500, at }));
    const { json } = await call("/measurement", "POST", { items });
    assert.deepEqual(new Set(json.results.map(({ status }) => status)), new Set(["stored"]));
  };
  const alerts = async (state) => {
    const { items } = await ask(`/alert?state=${state}&limit=1000`);
    return items.filter(({ device }) => device === "old-probe").length;
  };
  assert.equal((await call(probe, "PUT", { home: "home-02", room: "cellar" })).status, 201);
  await send([12, 10, 8, 6, 4, 2, 0]);
  const raised = await alerts("active");
  assert.ok(raised > 0);

  const viewer = await open(t, "viewer", DESK);
  for (const one of [viewer, page]) {
    await one.click('nav.side [data-testid="nav-sensors"]');
    await one.getByRole("row", { name: /old-probe/ }).waitFor();
  }
  assert.equal(await viewer.getByRole("button", { name: /old-probe/ }).count(), 0, "a viewer changes nothing");

  const row = page.getByRole("row", { name: /old-probe/ });
  const dialog = page.getByRole("dialog", { name: "Remove sensor old-probe?" });
  const question = async () => {
    await page.getByRole("button", { name: "Remove… old-probe" }).click();
    await dialog.waitFor();
  };
  const focused = () => page.evaluate(() => document.activeElement.textContent);
  const yes = dialog.getByRole("button", { name: "Remove sensor" });
  // Cancel is what Enter means.
  for (const no of ["Enter", "Escape"]) {
    await question();
    await dialog.getByText("All its readings are deleted for good").waitFor();
    await picture(page, "homes-remove-sensor");
    await page.keyboard.press(no);
    await dialog.waitFor({ state: "detached" });
    assert.equal((await call(probe)).status, 200, no);
    assert.equal(await focused(), "Remove… old-probe", no);
  }
  await question();
  await page.context().setOffline(true);
  await yes.click();
  await dialog.getByRole("alert").getByText("The server cannot be reached.").waitFor();
  await page.context().setOffline(false);
  assert.equal((await call(probe)).status, 200);
  assert.equal(await row.count(), 1);

  await yes.click();
  await page.getByText("Sensor removed.").waitFor();
  await row.waitFor({ state: "detached" });
  assert.equal(await focused(), "Sensors");
  assert.equal((await call(probe)).status, 404);
  assert.equal((await call("/series?device=old-probe&quantity=co2&step=raw")).status, 404);
  assert.deepEqual([await alerts("active"), await alerts("cleared")], [0, raised]);
  // Others see it without asking.
  await viewer.getByRole("row", { name: /old-probe/ }).waitFor({ state: "detached" });

  await send([0]);
  await page.getByRole("row", { name: /old-probe.*unassigned/ }).waitFor();
  assert.equal((await ask(probe)).home, null);
});

test("a phone shows homes and curves within its width", async (t) => {
  const page = await open(t, "viewer", PHONE, "dark");
  const fits = async (what) =>
    assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= PHONE.width, what);
  await fits("homes");
  await picture(page, "homes-phone");
  await page.locator('[data-testid="home"] a').first().click();
  await page.waitForSelector('[data-testid="chart"][data-ready="true"]');
  await fits("a home");
  await picture(page, "home-phone");
  await page.click('nav.tabs [data-testid="nav-alerts"]');
  await page.waitForSelector('[data-testid="alert"]');
  assert.equal(await page.getByTestId("acknowledge").count(), 0, "a viewer changes nothing");
  await fits("alerts");
});
