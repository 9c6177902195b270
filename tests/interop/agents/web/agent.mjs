// The agent of browsers for client_scenarios.py, which describes what it reads and answers: a page in Chromium, and a
// window, worker or service worker of it that plays (player.js).
//
// Usage: node agent.mjs window|worker|serviceworker

import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { get } from 'node:https';
import { createInterface } from 'node:readline';
import { launch } from '../../../browser/chromium.mjs';

const [where] = process.argv.slice(2);
const root = new URL('../../../../', import.meta.url);
const FILES = {
  '/player.js': 'tests/interop/agents/web/player.js',
  '/fulmar-web.js': 'clients/web/index.js',
  '/mqtt.esm.js': 'tests/interop/node/node_modules/mqtt/dist/mqtt.esm.js',
};

/** Where the broker of the last connection serves pages, and its authority. */
let broker = {};

/** What the broker says to its own pages, which this server passes on. */
const config = () =>
  new Promise((resolve, reject) => {
    get(`${broker.https}/api/v1/config`, { ca: readFileSync(broker.ca_file) }, (answer) => {
      let text = '';
      answer.on('data', (data) => (text += data)).on('end', () => resolve(text));
    }).on('error', reject);
  });

const server = createServer(async (request, response) => {
  if (request.url === '/api/v1/config') {
    try {
      response.setHeader('content-type', 'application/json').end(await config());
    } catch {
      response.writeHead(502).end();
    }
    return;
  }
  const file = FILES[request.url];
  response.setHeader('content-type', file ? 'text/javascript' : 'text/html');
  response.end(file ? readFileSync(new URL(file, root)) : '<!doctype html><title>agent</title>');
});
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));

const browser = await launch();
const page = await browser.newPage();
page.on('pageerror', (error) => console.error(error));
page.on('console', (message) => console.error(message.text()));
await page.goto(`http://localhost:${server.address().port}/`);
await page.evaluate(async (where) => {
  if (where === 'window') {
    window.play = (await import('/player.js')).play;
    return;
  }
  let target;
  if (where === 'worker') target = new Worker('/player.js', { type: 'module' });
  else {
    await navigator.serviceWorker.register('/player.js', { type: 'module' });
    target = (await navigator.serviceWorker.ready).active;
  }
  window.play = (request) =>
    new Promise((resolve) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = ({ data }) => resolve(data);
      target.postMessage(request, [port2]);
    });
}, where);

const running = [];
for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  if (request.do === 'connect') broker = request.options;
  const play = async () => console.log(JSON.stringify(await page.evaluate((wanted) => window.play(wanted), request)));
  running.push(play());
}
await Promise.all(running);
await browser.close();
server.close();
