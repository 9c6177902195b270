// Homes for the stand-in of the API: five of them, with values that go on, a radon alert, a silent sensor and one
// that nobody has assigned.

const NAMES = ['Bog Road 2', 'Chapel Lane 1', 'Forge Hill 2', 'Mill Road 1', 'Well Lane 2'];
const UNITS = { radon: 'Bq/m³', co2: 'ppm', temperature: '°C', humidity: '%' };
const USUAL = { radon: 80, co2: 700, temperature: 20.4, humidity: 51 };
const QUARTER_MS = 900_000;

export class MockHomes {
  constructor(names = NAMES) {
    this.homes = names.map((name, at) => ({
      id: `home-0${at + 1}`,
      name,
      place: { lat: 54.12 + 0.008 * Math.sin(at * 2.4), lon: -8.34 + 0.012 * Math.cos(at * 2.4) },
      street: name,
      note: null,
      gateway: 'gateway',
    }));
    this.sensors = this.homes.map(({ id }, at) => ({
      device: `${id}-living`,
      home: id,
      room: 'living room',
      model: 'air quality unit',
      quantities: Object.keys(UNITS),
      last_at: new Date(Date.now() - (at === 4 ? 7_200_000 : 4_000)).toISOString(),
      state: at === 4 ? 'silent' : 'ok',
      expected_every_s: 10,
      etag: '"1"',
    }));
    if (names.length > 0)
      this.sensors.push({
        ...this.sensors[0],
        device: 'spare-1',
        home: null,
        room: null,
        model: null,
      });
    this.alerts =
      names.length === 0
        ? []
        : [
            {
              id: 'a1',
              rule: 'r1',
              rule_name: 'Radon above the reference level',
              home: 'home-03',
              home_name: 'Forge Hill 2',
              device: 'home-03-living',
              quantity: 'radon',
              severity: 'critical',
              state: 'active',
              value: 512,
              peak: 640,
              unit: 'Bq/m³',
              threshold: 300,
              raised_at: new Date(Date.now() - 5_400_000).toISOString(),
              cleared_at: null,
              acknowledged_at: null,
              acknowledged_by: null,
              note: null,
            },
          ];
    this.rules =
      names.length === 0
        ? []
        : [
            {
              id: 'r1',
              name: 'Radon above the reference level',
              quantity: 'radon',
              home: null,
              severity: 'critical',
              above: 300,
              below: null,
              clear: 270,
              for_s: 0,
              averaging_s: 86_400,
              silent_s: null,
              source: '2013/59/Euratom; WHO 2009',
              enabled: true,
              etag: '"1"',
            },
          ];
    if (names.length > 0)
      this.rules.push({
        ...this.rules[0],
        id: 'r2',
        name: 'Sensor silent',
        quantity: null,
        severity: 'warning',
        above: null,
        clear: null,
        averaging_s: 0,
        silent_s: 3600,
        source: null,
      });
    this.hooks = [];
  }

  value(device, quantity, ms) {
    const home = Number(device.match(/\d+/)?.[0] ?? 1);
    const day = Math.sin((ms / 86_400_000) * 2 * Math.PI + home);
    const scale = quantity === 'radon' && home === 3 ? 6 : 1;
    return Math.round(10 * USUAL[quantity] * scale * (1 + 0.15 * day + 0.03 * Math.sin(ms / 3e5))) / 10;
  }

  show(home) {
    const own = this.sensors.filter((sensor) => sensor.home === home.id);
    const values = own.flatMap(({ device, quantities, last_at: at, state }) =>
      quantities.map((quantity) => ({
        device,
        quantity,
        value: this.value(device, quantity, Date.parse(at)),
        unit: UNITS[quantity],
        at,
        stale: state === 'silent',
      })),
    );
    const raised = this.alerts.filter((alert) => alert.home === home.id && alert.state !== 'cleared');
    const worst = raised.length > 0 ? raised[0].severity : 'ok';
    return { ...home, devices: own.length, values, worst, alerts: raised.length, etag: '"1"' };
  }

  on_home({ method, body }) {
    if (method === 'POST') {
      const home = { id: `home-0${this.homes.length + 1}`, note: null, gateway: null, ...body };
      this.homes.push(home);
      return [201, this.show(home)];
    }
    return [200, { items: this.homes.map((home) => this.show(home)), next: null }];
  }

  on_sensor({ method, id, body }) {
    const sensor = this.sensors.find((one) => one.device === id);
    if (method === 'PUT') return [200, Object.assign(sensor, body)];
    if (method === 'DELETE') {
      this.sensors.splice(this.sensors.indexOf(sensor), 1);
      return [204, null];
    }
    const now = new Date().toISOString();
    for (const one of this.sensors) if (one.state === 'ok') one.last_at = now;
    return [200, { items: this.sensors, next: null }];
  }

  /** Quarters of an hour with a gap of three hours in the middle; of the fourth home, whose gateway measures every
   * half hour, with every other one empty. */
  on_series({ query }) {
    const [device, quantity] = [query.get('device'), query.get('quantity')];
    const [from, to] = [Date.parse(query.get('from')), Date.parse(query.get('to'))];
    const step = Math.max(QUARTER_MS, Math.ceil((to - from) / 400 / QUARTER_MS) * QUARTER_MS);
    const middle = (from + to) / 2;
    const points = [];
    for (let at = Math.ceil(from / step) * step; at < to; at += step) {
      const isSparse = device.startsWith('home-04');
      const isGap = isSparse ? (at / step) % 2 === 1 : Math.abs(at - middle) < 5_400_000;
      const value = isGap ? null : this.value(device, quantity, at);
      const edge = (share) => (isGap ? null : Math.round(value * share * 10) / 10);
      points.push({
        at: new Date(at).toISOString(),
        value,
        min: edge(0.96),
        max: edge(1.05),
        count: isGap ? 0 : 90,
      });
    }
    return [200, { device, quantity, unit: UNITS[quantity], step_s: step / 1000, points }];
  }

  on_alert({ id, action, query, body, user }) {
    const alert = this.alerts.find((one) => one.id === id);
    if (action === 'acknowledge') {
      const acknowledged = { state: 'acknowledged', acknowledged_at: new Date().toISOString() };
      return [200, Object.assign(alert, acknowledged, { acknowledged_by: user.name, note: body.note })];
    }
    const items = this.alerts.filter((one) => one.state === query.get('state'));
    return [200, { items, next: null }];
  }

  on_alert_rule({ method, id, body }) {
    if (method === 'POST') {
      this.rules.push({ id: `r${this.rules.length + 1}`, etag: '"1"', ...body });
      return [201, this.rules.at(-1)];
    }
    const rule = this.rules.find((one) => one.id === id);
    if (method === 'DELETE') {
      this.rules.splice(this.rules.indexOf(rule), 1);
      return [204, null];
    }
    if (method === 'PATCH') return [200, Object.assign(rule, body)];
    return [200, { items: this.rules, next: null }];
  }

  on_webhook({ method, id, body }) {
    if (method === 'POST') {
      const { secret: _, ...shown } = body;
      this.hooks.push({ id: `w${this.hooks.length + 1}`, ...shown });
      return [201, this.hooks.at(-1)];
    }
    if (method === 'DELETE') {
      this.hooks = this.hooks.filter((hook) => hook.id !== id);
      return [204, null];
    }
    return [200, { items: this.hooks, next: null }];
  }
}
