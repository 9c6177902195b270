// What carries pages, API and MQTT, in the browser's own words and the server's; and that nothing needs UDP.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { TcpOnly } from "./blocked.mjs";
import { NAME, launch, mqttOverWebSocket, mqttOverWebTransport, protocolOf, protocolOfPage, trust } from "./chromium.mjs";
import { Server, eventually } from "./fulmar.mjs";

const CONNACK = { connack: [32, 2, 0, 0] };

let server;
before(async () => {
  server = await Server.start({ settings: `[tls]\nnames = ["${NAME}"]\n` });
});
after(() => server?.close());

/** The page at `/` in a browser of its own, which the test closes. */
async function open(t, options, port = server.port("https")) {
  const browser = await launch(options);
  t.after(() => browser.close());
  const page = await (await browser.newContext({ serviceWorkers: "block" })).newPage();
  await page.goto(`https://${NAME}:${port}/`);
  return page;
}

const config = (page) => page.evaluate(async () => await (await fetch("/api/v1/config")).json());

test("pages and API come over HTTP/3", async (t) => {
  const before = await server.metrics();
  const forced = `--origin-to-force-quic-on=${NAME}:${server.port("https")}`;
  const page = await open(t, { ...trust.installed(server), flags: [forced] });
  assert.equal(await protocolOfPage(page), "h3");
  assert.equal(await protocolOf(page, "/api/v1/status"), "h3");
  assert.equal(await protocolOf(page, "/api/v1/config"), "h3");
  const status = await page.evaluate(async () => await (await fetch("/api/v1/status")).json());
  assert.equal(status.protocol, "HTTP/3");
  const after = await server.metrics();
  const grown = (labels) => after[`fulmar_http_requests_total{${labels}}`] - before[`fulmar_http_requests_total{${labels}}`];
  assert.ok(grown('version="3",status="2xx"') >= 4, server.log);
  assert.equal(grown('version="2",status="2xx"'), 0, "nothing came another way");
});

test("MQTT runs over WebTransport, with no flag and a certificate no authority has signed", async (t) => {
  const page = await open(t, trust.installed(server));
  assert.equal(await protocolOfPage(page), "h2");
  const { mqtt } = await config(page);
  assert.equal(mqtt.webtransport.url, `https://${NAME}:${server.port("webtransport")}/mqtt`);
  assert.equal(mqtt.webtransport.certificate_hashes.length, 2, "the one in use and the next");
  assert.equal(mqtt.webtransport.certificate_hashes[0], server.hash(`${server.data}/webtransport/current.pem`));
  assert.equal(mqtt.webtransport.certificate_hashes[1], server.hash(`${server.data}/webtransport/next.pem`));
  const { url, certificate_hashes } = mqtt.webtransport;
  assert.deepEqual(await mqttOverWebTransport(page, url, certificate_hashes), CONNACK);
  const open_ = 'fulmar_connections{transport="webtransport"}';
  assert.equal((await server.metrics())[open_], 1);
  // Another server's certificate is not taken for ours.
  const wrong = await mqttOverWebTransport(page, url, [server.hash()]);
  assert.match(wrong.error, /WebTransportError/);
  await page.close();
  await eventually("the end of its session", async () => (await server.metrics())[open_] === 0);
});

test("with UDP blocked everything runs over TCP", async (t) => {
  const way = await TcpOnly.before(server.port("https"));
  t.after(() => way.close());
  const page = await open(t, trust.installed(server), way.port);
  assert.equal(await protocolOfPage(page), "h2");
  assert.equal(await protocolOf(page, "/api/v1/status"), "h2");
  const { mqtt } = await config(page);
  assert.equal(mqtt.websocket.url, `wss://${NAME}:${way.port}/mqtt`);
  const blocked = await mqttOverWebTransport(page, `https://${NAME}:${way.port}/mqtt`, mqtt.webtransport.certificate_hashes);
  assert.match(blocked.error, /WebTransportError/);
  assert.ok(way.swallowed > 0, "it was tried");
  const upgrades = 'fulmar_http_requests_total{version="1.1",status="1xx"}';
  const before = (await server.metrics())[upgrades];
  assert.deepEqual(await mqttOverWebSocket(page, mqtt.websocket.url), CONNACK);
  assert.equal((await server.metrics())[upgrades], before, "it went by extended CONNECT of HTTP/2, no upgrade");
});

test("pages of other origins reach MQTT neither way", async (t) => {
  const other = await Server.start({ settings: `[tls]\nnames = ["${NAME}"]\n` });
  t.after(() => other.close());
  const page = await open(t, trust.errorsIgnored(), other.port("https"));
  const { mqtt } = await config(await open(t, trust.errorsIgnored()));
  const { url, certificate_hashes } = mqtt.webtransport;
  assert.match((await mqttOverWebTransport(page, url, certificate_hashes)).error, /WebTransportError/);
  assert.deepEqual(await mqttOverWebSocket(page, mqtt.websocket.url), { error: "WebSocket" });
  assert.equal((await server.metrics()).fulmar_http_origins_refused_total, 2, server.log);
});
