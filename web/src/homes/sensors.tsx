// The registry of sensor units: where each is, and whether it is heard of. Those without a home come first.

import { useState } from 'preact/hooks';
import { ask } from '../data/office';
import { ago, plural } from '../lib/format';
import * as app from '../state';
import { Dialog, Empty, Field, Note, Page, Table, Tag } from '../ui/parts';
import { Link } from '../ui/router';
import { duration, quantityName } from './lib';
import { numberOf } from './overview';
import { attempt, Hindrance, RefreshButton } from './parts';
import { homes, loadedAt, reload, sensors } from './state';
import type { Sensor } from './types';

export function Sensors() {
  const [edited, setEdited] = useState<Sensor | null>(null);
  const [doubted, setDoubted] = useState<Sensor | null>(null);
  const rows = [...sensors.value].sort(
    (a, b) => Number(a.home !== null) - Number(b.home !== null) || a.device.localeCompare(b.device),
  );
  const loose = rows.filter((sensor) => sensor.home === null).length;
  return (
    <Page title="Sensors" wide actions={<RefreshButton />}>
      <Hindrance />
      {loose > 0 && (
        <Note tone="warn">
          {plural(loose, 'sensor')} without a home. Their readings are kept; assign them to a home to see them
          and to get alerts.
        </Note>
      )}
      {loadedAt.value !== null && rows.length === 0 && (
        <Empty icon="devices" title="No sensor has sent anything yet">
          Sensors appear here by themselves when their first reading arrives.
        </Empty>
      )}
      {rows.length > 0 && (
        <Table
          caption="Sensors, those without a home first"
          testid="sensors"
          rows={rows}
          rowKey={(sensor) => sensor.device}
          columns={[
            { name: 'Sensor', cell: (sensor) => <Named sensor={sensor} /> },
            { name: 'Home', cell: (sensor) => <Where sensor={sensor} /> },
            { name: 'Room', cell: (sensor) => sensor.room ?? '' },
            { name: 'Measures', cell: (sensor) => sensor.quantities.map(quantityName).join(', ') },
            { name: 'Last reading', cell: (sensor) => <Heard sensor={sensor} /> },
            {
              name: 'Change',
              cell: (sensor) =>
                app.mayManage.value && (
                  <span class="sensor-actions">
                    <button
                      type="button"
                      class="small"
                      onClick={() => setEdited(sensor)}
                      data-testid="edit-sensor"
                    >
                      {sensor.home === null ? 'Assign' : 'Edit'}
                      <span class="sr-only"> {sensor.device}</span>
                    </button>
                    <button
                      type="button"
                      class="small quiet"
                      onClick={() => setDoubted(sensor)}
                      data-testid="remove-sensor"
                    >
                      Remove…<span class="sr-only"> {sensor.device}</span>
                    </button>
                  </span>
                ),
            },
          ]}
        />
      )}
      {edited && <Edit sensor={edited} onClose={() => setEdited(null)} />}
      {doubted && <Remove sensor={doubted} onClose={() => setDoubted(null)} />}
    </Page>
  );
}

function Named({ sensor }: { sensor: Sensor }) {
  return (
    <span>
      <strong>{sensor.device}</strong>
      {sensor.model && <small class="muted"> {sensor.model}</small>}
    </span>
  );
}

function Where({ sensor }: { sensor: Sensor }) {
  const { home } = sensor;
  if (home === null) return <Tag tone="warn">unassigned</Tag>;
  return <Link to={`/homes/${encodeURIComponent(home)}`}>{homes.value.get(home)?.name ?? home}</Link>;
}

function Heard({ sensor }: { sensor: Sensor }) {
  return (
    <span>
      {sensor.last_at ? ago(sensor.last_at, app.clock.value) : 'never'}{' '}
      {sensor.state === 'silent' && <Tag tone="bad">silent</Tag>}
    </span>
  );
}

function Remove({ sensor, onClose }: { sensor: Sensor; onClose: () => void }) {
  const { device, etag } = sensor;
  const remove = async () => {
    const send = () => ask(pathOf(sensor), { method: 'DELETE', ifMatch: etag });
    // The button that had the focus goes with the sensor.
    if (await attempt(send, 'Sensor removed.'))
      document.querySelector<HTMLElement>('main h1')?.focus({ preventScroll: true });
    // Also if it was refused: somebody else may have removed or changed it.
    await reload();
  };
  return (
    <Dialog title={`Remove sensor ${device}?`} onClose={onClose}>
      <p>
        All its readings are deleted for good, with their averages. Its open alerts are cleared; cleared
        alerts stay listed.
      </p>
      <p>If it still sends, its next reading registers it again, without a home.</p>
      <form method="dialog" class="dialog-actions">
        <button type="submit" autofocus>
          Cancel
        </button>
        <button type="submit" class="danger" onClick={() => void remove()}>
          Remove sensor
        </button>
      </form>
    </Dialog>
  );
}

function pathOf({ device }: Sensor): string {
  return `/sensor/${encodeURIComponent(device)}`;
}

function Edit({ sensor, onClose }: { sensor: Sensor; onClose: () => void }) {
  const [home, setHome] = useState(sensor.home ?? '');
  const [room, setRoom] = useState(sensor.room ?? '');
  const [model, setModel] = useState(sensor.model ?? '');
  const [every, setEvery] = useState(sensor.expected_every_s?.toString() ?? '');
  const save = async (event: Event) => {
    event.preventDefault();
    const json = {
      home: home || null,
      room: room.trim() || null,
      model: model.trim() || null,
      expected_every_s: numberOf(every),
    };
    const send = () => ask(pathOf(sensor), { method: 'PUT', json, ifMatch: sensor.etag });
    if (await attempt(send, 'Saved.')) {
      onClose();
      await reload();
    }
  };
  const names = [...homes.value.values()].sort((a, b) =>
    a.name.localeCompare(b.name, 'en', { numeric: true }),
  );
  return (
    <Dialog title={`Sensor ${sensor.device}`} onClose={onClose}>
      <form class="form" onSubmit={(event) => void save(event)}>
        <Field label="Home" id="sensor-home">
          <select id="sensor-home" value={home} onChange={(event) => setHome(event.currentTarget.value)}>
            <option value="">Not assigned</option>
            {names.map((one) => (
              <option key={one.id} value={one.id}>
                {one.name}
              </option>
            ))}
          </select>
        </Field>
        <Field label="Room" id="sensor-room">
          <input
            id="sensor-room"
            maxLength={60}
            value={room}
            onInput={(event) => setRoom(event.currentTarget.value)}
          />
        </Field>
        <Field label="Model" id="sensor-model">
          <input
            id="sensor-model"
            maxLength={60}
            value={model}
            onInput={(event) => setModel(event.currentTarget.value)}
          />
        </Field>
        <Field
          label="Interval, seconds"
          id="sensor-every"
          hint={
            numberOf(every)
              ? `It counts as silent after ${duration(3 * Number(every))}.`
              : 'Unknown: it counts as silent after 15 min.'
          }
        >
          <input
            id="sensor-every"
            type="number"
            min={1}
            max={2_592_000}
            value={every}
            onInput={(event) => setEvery(event.currentTarget.value)}
            aria-describedby="sensor-every-hint"
          />
        </Field>
        <div class="dialog-actions">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Save
          </button>
        </div>
      </form>
    </Dialog>
  );
}
