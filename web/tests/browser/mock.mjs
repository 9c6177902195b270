// A stand-in for the platform's API, in memory, that serves the built app too: for the browser test and
// for working on the app without a server (`npm run dev`). It answers what the app asks, no more.

import { createHash, randomUUID } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gunzipSync } from 'node:zlib';
import { MockHomes } from './mock-homes.mjs';

const DIST = fileURLToPath(new URL('../../dist', import.meta.url));
const TYPES = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript',
  '.css': 'text/css',
  '.svg': 'image/svg+xml',
  '.png': 'image/png',
  '.webmanifest': 'application/manifest+json',
};
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; " +
  "worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
/** Emma's and Hugo's installations are new: there is nothing in them. */
const ROLES = {
  rita: 'reader',
  otto: 'reader',
  olga: 'office',
  emma: 'office',
  hanna: 'office',
  hugo: 'office',
};
const TWINS = {
  emma: { id: 'moor', name: 'Moorland', kind: 'meters' },
  hanna: { id: 'rural', name: 'Rural homes', kind: 'homes' },
  hugo: { id: 'vale', name: 'Vale homes', kind: 'homes' },
};
/** More than a page shows at once. */
const OLD_READINGS = 1300;
const STREETS = [
  'Mill Lane',
  'Harbour Road',
  'Church Street',
  'Station Road',
  'Meadow Way',
  'Quay Street',
  'Castle Hill',
  'Orchard Close',
];
const CENTRE = { lat: 53.3562, lon: -6.4526 };

/** `count` meters along streets, some without radio, as a small town has them. */
export function town(count) {
  const perStreet = Math.ceil(count / (STREETS.length * 5));
  return Array.from({ length: count }, (_, at) => {
    const street = Math.floor(at / perStreet);
    const along = at % perStreet;
    const isAcross = street % 2 === 1;
    const offset = (Math.floor(street / 2) - 10) * 0.0016;
    const side = (at % 2 ? 1 : -1) * 0.0001;
    const distance = (along - perStreet / 2) * 0.00022;
    const place = {
      lat: CENTRE.lat + (isAcross ? distance * 0.62 : (offset + side) * 0.62),
      lon: CENTRE.lon + (isAcross ? offset + side : distance),
    };
    const isRadio = at % 9 !== 4;
    const value = 100 + ((at * 7919) % 900);
    const number = String(21000000 + at * 37);
    const name = `${STREETS[street % STREETS.length]}${street >= STREETS.length ? ` ${'ABCDEFGH'[Math.floor(street / STREETS.length) - 1]}` : ''}`;
    return {
      id: `m${at}`,
      address: isRadio ? `KAM-${number}-1b-16` : null,
      serial: number,
      manufacturer: isRadio ? 'KAM' : 'SEN',
      medium: at % 11 === 5 ? 'heat' : at % 13 === 7 ? 'warm_water' : 'water',
      place,
      street: `${name} ${along + 1}`,
      unit: at % 11 === 5 ? 'kWh' : 'm3',
      register_digits: 5,
      radio: isRadio,
      has_key: isRadio,
      note: at % 17 === 3 ? 'Behind the blue door in the cellar' : null,
      expected: { low: value, high: value + 25 },
      last: { value, unit: at % 11 === 5 ? 'kWh' : 'm3', at: '2026-10-20T09:12:00.000Z', method: 'manual' },
      state: at % 61 === 30 ? 'leak_suspected' : at % 47 === 20 ? 'missed' : 'ok',
      etag: '"1"',
    };
  });
}

export class Mock {
  constructor(count = 3000) {
    this.empty = count > 0 ? { moor: new Mock(0), vale: new MockHomes([]) } : {};
    this.meters = new Map(town(count).map((meter) => [meter.id, meter]));
    this.village = new MockHomes();
    this.readings = new Map();
    this.photos = new Map();
    this.exchanges = new Map();
    this.frames = [];
    this.telemetry = [];
    this.tokens = new Map();
    this.commands = [];
    this.lists = new Map();
    /** While set, every request of the API fails as if the network were gone. */
    this.isDown = false;
    if (count === 0) return;
    const ids = [...this.meters.keys()];
    const manual = ids.filter((id) => !this.meters.get(id).radio);
    this.addList('L1', 'Old town, by hand', 'rita', manual.slice(0, 40), '2026-12-04T00:00:00.000Z');
    this.addList(
      'L2',
      'Harbour and Quay, radio',
      'rita',
      ids.filter((id) => this.meters.get(id).radio).slice(0, 400),
      '2026-12-11T00:00:00.000Z',
    );
    this.addList('L3', 'Meadow Way', null, ids.slice(900, 960), null);
    for (let at = 0; at < OLD_READINGS; at += 1) {
      const id = ids[at % 400];
      const { low } = this.meters.get(id).expected;
      const when = Date.UTC(2025, 10, 1) + at * 6.5 * 3600e3;
      const old = { method: 'radio', device: 'van-1', reader: 'otto', unit: 'm3', work_list: null };
      this.store({ id: randomUUID(), meter: id, value: low - 1, at: new Date(when).toISOString(), ...old });
    }
    for (const id of manual.slice(0, 9))
      this.store({
        id: randomUUID(),
        meter: id,
        value: this.meters.get(id).expected.low + 5,
        unit: 'm3',
        method: 'manual',
        at: new Date(Date.now() - 9e6).toISOString(),
        work_list: 'L1',
        device: 'van-1',
        reader: 'otto',
      });
  }

  addList(id, name, assignee, meters, due) {
    this.lists.set(id, {
      id,
      name,
      assignee,
      state: 'open',
      due,
      tasks: new Map(meters.map((meter) => [meter, { state: 'open', reading: null, note: null }])),
      version: 1,
    });
  }

  show(list, isWhole) {
    const tasks = [...list.tasks].map(([id, task]) => ({
      meter: this.meters.get(id),
      ...task,
      reading: this.readings.get(task.reading) ?? null,
    }));
    const { id, name, assignee, state, due, version } = list;
    const done = tasks.filter((task) => task.state !== 'open').length;
    return {
      id,
      name,
      assignee,
      state,
      due,
      total: tasks.length,
      done,
      etag: `"${version}"`,
      ...(isWhole ? { tasks } : {}),
    };
  }

  store(reading) {
    const { id } = reading;
    if (this.readings.has(id)) return { id, status: 'duplicate' };
    const meter = this.meters.get(reading.meter);
    if (!meter) return { id, status: 'rejected', detail: 'There is no such meter.' };
    const task = reading.work_list ? this.lists.get(reading.work_list)?.tasks.get(reading.meter) : undefined;
    const other = task?.reading ? this.readings.get(task.reading) : undefined;
    const stored = {
      conflict_with: [],
      flags: [],
      protection: reading.method === 'radio' ? 'encrypted' : null,
      photo: null,
      note: null,
      original: null,
      changed: null,
      etag: '"1"',
      received_at: new Date().toISOString(),
      ...reading,
    };
    this.readings.set(id, stored);
    meter.last = {
      value: reading.value,
      unit: reading.unit,
      at: reading.at,
      method: reading.method,
      protection: stored.protection,
    };
    const isConflict = other && other.device !== reading.device;
    if (isConflict) {
      stored.conflict_with = [other.id];
      other.conflict_with = [...other.conflict_with, id];
    }
    if (task) {
      Object.assign(task, { state: 'read', reading: id });
      this.lists.get(reading.work_list).version += 1;
    }
    return isConflict
      ? { id, status: 'conflict', detail: `Read by ${other.reader ?? 'another device'} too.` }
      : { id, status: 'stored' };
  }

  /** [status, body] for a request of the API. */
  answer(method, path, query, body, token) {
    if (method === 'POST' && path === '/session') return this.login(body);
    if (path === '/config')
      return [
        200,
        {
          version: '0.1.0-mock',
          title: 'Riverside Water',
          mqtt: null,
          demo: { user: 'rita', password: 'demo' },
        },
      ];
    const user = this.tokens.get(token);
    if (!user) return [401, { title: 'Unauthorized', detail: 'Log in first.' }];
    if (path === '/session') {
      if (method === 'DELETE') this.tokens.delete(token);
      return [method === 'DELETE' ? 204 : 200, { user }];
    }
    const [, twin, kind, id, action, last] = path.split('/').map(decodeURIComponent);
    const place = { river: this, rural: this.village, ...this.empty }[twin];
    const handler = place?.[`on_${kind}`];
    return handler
      ? handler.call(place, { method, id, action, last, query, body, user })
      : [404, { title: 'Not found' }];
  }

  login({ user, password }) {
    if (!ROLES[user] || password !== 'demo')
      return [401, { title: 'Unauthorized', detail: 'Name or password is wrong.' }];
    const token = randomUUID();
    const twin = TWINS[user] ?? { id: 'river', name: 'Riverside', kind: 'meters' };
    const twins = [{ ...twin, role: ROLES[user] }];
    const shown = {
      name: user,
      display_name: `${user[0].toUpperCase()}${user.slice(1)}`,
      role: ROLES[user],
      twins,
    };
    this.tokens.set(token, shown);
    return [201, { token, expires_at: '2027-01-01T00:00:00.000Z', user: shown }];
  }

  on_undefined() {
    return [
      200,
      {
        id: 'river',
        name: 'Riverside',
        centre: CENTRE,
        meters: this.meters.size,
        work_lists: this.lists.size,
      },
    ];
  }

  on_meter({ method, id, action, last, query, body, user }) {
    if (action === 'exchange') return this.exchange(method, this.meters.get(id), last, body, user);
    if (action === 'consumption') return [200, { points: consumption(query.get('step') ?? 'day') }];
    if (id) return this.meters.has(id) ? [200, this.meters.get(id)] : [404, { title: 'Not found' }];
    const items = query.has('changed_since')
      ? [...this.meters.values()].filter((meter) => meter.last.at > query.get('changed_since'))
      : [...this.meters.values()];
    return [200, page(items, query)];
  }

  exchange(method, meter, id, body, user) {
    const known = this.exchanges.get(meter.id) ?? [];
    if (method === 'GET') return [200, { items: known, next: null }];
    if (method === 'DELETE') {
      const taken = known.find((one) => one.id === id);
      Object.assign(taken, { withdrawn_by: user.name, withdrawn_at: new Date().toISOString() });
      meter.serial = taken.old_serial;
      return [204, null];
    }
    if (body.final < meter.last.value) {
      const detail = `final: the meter showed ${meter.last.value} before: correct that reading first`;
      return [422, { title: 'Unprocessable Entity', detail }];
    }
    const entered = {
      old_serial: meter.serial,
      entered_by: user.name,
      withdrawn_by: null,
      withdrawn_at: null,
    };
    const made = { ...body, ...entered };
    this.exchanges.set(meter.id, [made, ...known]);
    Object.assign(meter, {
      serial: body.new_serial,
      last: { ...meter.last, value: body.first, at: body.at },
    });
    return [201, made];
  }

  on_work_list({ method, id, query, body, user }) {
    if (!id && method === 'POST') {
      const created = `L${this.lists.size + 1}`;
      this.addList(created, body.name, body.assignee, body.meters, body.due);
      return [201, this.show(this.lists.get(created), true)];
    }
    const visible = [...this.lists.values()].filter(
      (list) => user.role !== 'reader' || !list.assignee || list.assignee === user.name,
    );
    if (!id)
      return [
        200,
        page(
          visible.map((list) => this.show(list, false)),
          query,
        ),
      ];
    const list = visible.find((one) => one.id === id);
    if (!list) return [404, { title: 'Not found' }];
    if (method !== 'PATCH') return [200, this.show(list, true)];
    if (body.assignee && !ROLES[body.assignee]) {
      const detail = 'there is no such user in this twin';
      return [
        422,
        { title: 'Unprocessable', detail: `assignee: ${detail}`, errors: [{ field: 'assignee', detail }] },
      ];
    }
    const results = (body.readings ?? []).map((reading) =>
      this.store({ ...reading, reader: user.name, work_list: id }),
    );
    for (const { meter, state, note } of body.tasks ?? [])
      Object.assign(list.tasks.get(meter) ?? {}, { state, note });
    for (const key of ['name', 'assignee', 'state', 'due']) if (key in body) list[key] = body[key];
    list.version += 1;
    return [200, { work_list: this.show(list, false), results }];
  }

  on_reading({ method, id, action, query, body, user }) {
    if (id && method === 'PATCH') return this.correct(this.readings.get(id), body, user);
    if (id && action === 'resolve') {
      if (user.role === 'reader')
        return [403, { title: 'Forbidden', detail: 'your role does not allow this' }];
      const kept = this.readings.get(id);
      for (const other of kept?.conflict_with ?? []) this.readings.get(other).conflict_with = [];
      if (kept) kept.conflict_with = [];
      return kept ? [200, kept] : [404, { title: 'Not found' }];
    }
    if (id) return this.readings.has(id) ? [200, this.readings.get(id)] : [404, { title: 'Not found' }];
    if (method === 'POST')
      return [200, { results: body.items.map((reading) => this.store({ ...reading, reader: user.name })) }];
    const wanted = (key) => (reading) => !query.has(key) || reading[key] === query.get(key);
    const items = [...this.readings.values()]
      .filter(wanted('meter'))
      .filter(wanted('work_list'))
      .filter(wanted('method'))
      .filter(
        (one) =>
          !query.has('conflict') || one.conflict_with.length > 0 === (query.get('conflict') === 'true'),
      )
      .sort((a, b) => a.at.localeCompare(b.at));
    if (query.get('order') === 'desc') items.reverse();
    return [200, page(items, query)];
  }

  correct(reading, { value, withdrawn, reason }, user) {
    if (!reading) return [404, { title: 'Not found' }];
    const action = withdrawn === undefined ? 'corrected' : withdrawn ? 'withdrawn' : 'restored';
    reading.changed = { action, by: user.name, at: new Date().toISOString(), reason };
    if (value !== undefined) {
      reading.original ??= { value: reading.value, at: reading.at };
      reading.value = value;
    }
    const others = reading.flags.filter((flag) => flag !== 'withdrawn' && flag !== 'corrected');
    if (reading.original) others.push('corrected');
    if (withdrawn) others.push('withdrawn');
    reading.flags = others;
    return [200, reading];
  }

  on_photo({ method, id, body }) {
    if (method !== 'PUT')
      return this.photos.has(id) ? [200, this.photos.get(id)] : [404, { title: 'Not found' }];
    const status = this.photos.has(id) ? 200 : 201;
    this.photos.set(id, body);
    return [status, null];
  }

  on_frame({ body }) {
    this.frames.push(...body.frames);
    return [200, { results: body.frames.map(() => ({ status: 'stored' })) }];
  }

  on_instance({ method, id, action, body }) {
    if (action === 'telemetry' && method === 'POST') {
      this.telemetry.push(...body.items);
      return [200, { results: [] }];
    }
    if (action === 'telemetry') return [200, { items: this.telemetry, next: null }];
    if (action === 'command' && method === 'POST') {
      this.commands.push({
        id: randomUUID(),
        command: 'locate',
        args: body?.args ?? null,
        state: 'pending',
        detail: null,
        at: new Date().toISOString(),
      });
      return [202, this.commands.at(-1)];
    }
    if (action === 'command') return [200, { items: this.commands, next: null }];
    if (method === 'PUT') return [200, body];
    const van = {
      device: 'van-1',
      kind: 'van',
      name: 'Van 1',
      app_version: '0.1.0',
      seen_at: new Date(Date.now() - 42e3).toISOString(),
      telemetry: {
        id: 't1',
        at: new Date(Date.now() - 42e3).toISOString(),
        place: CENTRE,
        battery_percent: 71,
        charging: false,
      },
    };
    if (this.meters.size === 0) return [200, { items: [], next: null }];
    return id ? [200, van] : [200, { items: [van], next: null }];
  }

  on_report({ id, query }) {
    const of = (state) => [...this.meters.values()].filter((meter) => meter.state === state);
    if (id === 'missed') {
      const [list] = this.lists.values();
      if (!list) return [200, page([], query)];
      const { id, name, assignee, state, due } = this.show(list, false);
      const work_list = { id, name, assignee, state, due };
      const items = of('missed').map((meter) => ({ meter, work_list, state: 'open', note: null }));
      return [200, page(items, query)];
    }
    if (id === 'leaks') {
      const since = new Date(Date.now() - 30 * 3600e3).toISOString();
      const items = of('leak_suspected').map((meter) => ({ meter, since, least_per_hour: 0.012 }));
      return [200, page(items, query)];
    }
    return [
      200,
      page(
        [...this.lists.values()].map((list) => this.show(list, false)),
        query,
      ),
    ];
  }
}

function consumption(step) {
  const days = { hour: 1 / 24, day: 1, month: 30 }[step];
  return Array.from({ length: 60 }, (_, at) => ({
    at: new Date(Date.UTC(2026, 8, 20) + at * days * 86_400_000).toISOString(),
    value: 120 + at * 0.4,
    consumption: 0.3 + 0.15 * Math.sin(at / 3.5) + (at % 7 > 4 ? 0.12 : 0),
  }));
}

function page(items, query) {
  const [limit, from] = [Number(query.get('limit') ?? 100), Number(query.get('cursor') ?? 0)];
  return {
    items: items.slice(from, from + limit),
    next: items.length > from + limit ? String(from + limit) : null,
  };
}

async function bodyOf(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  const bytes = Buffer.concat(parts);
  const plain = request.headers['content-encoding'] === 'gzip' ? gunzipSync(bytes) : bytes;
  return /json/.test(request.headers['content-type'] ?? '') ? JSON.parse(plain.toString()) : bytes;
}

async function sendFile(response, path) {
  const wanted = extname(path) ? path : '/index.html';
  try {
    const bytes = await readFile(join(DIST, wanted));
    response.writeHead(200, {
      'content-type': TYPES[extname(wanted)] ?? 'application/octet-stream',
      'content-security-policy': POLICY,
    });
    response.end(bytes);
  } catch {
    response.writeHead(404).end();
  }
}

/** Listens on loopback; port 0 takes a free one. */
export async function serve(mock, port = 0) {
  const server = createServer(async (request, response) => {
    const url = new URL(request.url, 'http://x');
    if (!url.pathname.startsWith('/api/v1/')) return sendFile(response, url.pathname);
    if (mock.isDown) return request.socket.destroy();
    const token = request.headers.authorization?.replace('Bearer ', '');
    const [status, body] = mock.answer(
      request.method,
      url.pathname.slice(7),
      url.searchParams,
      await bodyOf(request),
      token,
    );
    if (Buffer.isBuffer(body)) {
      response.writeHead(status, { 'content-type': 'image/jpeg' }).end(body);
      return;
    }
    const text = status === 204 || body === null ? '' : JSON.stringify(body);
    const type = status >= 400 ? 'application/problem+json' : 'application/json';
    const etag = `"${createHash('sha256').update(text).digest('hex').slice(0, 16)}"`;
    response.writeHead(status, text ? { 'content-type': type, etag } : {}).end(text);
  });
  await new Promise((resolve) => server.listen(port, '127.0.0.1', resolve));
  return { url: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const at = process.argv.indexOf('--port');
  const { url } = await serve(new Mock(), at > 0 ? Number(process.argv[at + 1]) : 8080);
  console.log(`${url} (rita or olga, password demo)`);
}
