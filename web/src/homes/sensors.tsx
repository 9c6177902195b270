// The registry of sensor units: where each is, and whether it is heard of. Those without a home come first.

import { useState } from 'preact/hooks';
import { ask } from '../data/office';
import { numberOf } from '../lib/fields';
import { ago, plural } from '../lib/format';
import * as app from '../state';
import { Careful, DialogForm } from '../ui/form';
import { List } from '../ui/list';
import { Note, Page, Tag } from '../ui/parts';
import { Link } from '../ui/router';
import { duration, quantityName } from './lib';
import { Hindrance, homeOptions, Refresh } from './parts';
import { homes, loadedAt, reload, sensors } from './state';
import type { Sensor } from './types';

export function Sensors() {
  const [edited, setEdited] = useState<Sensor | null>(null);
  const rows = [...sensors.value].sort(
    (a, b) => Number(a.home !== null) - Number(b.home !== null) || a.device.localeCompare(b.device),
  );
  const loose = rows.filter((sensor) => sensor.home === null).length;
  return (
    <Page wide actions={<Refresh />}>
      <Hindrance />
      {loose > 0 && (
        <Note tone="warn">
          {plural(loose, 'sensor')} without a home. All readings are kept; assign{' '}
          {loose === 1 ? 'it to a home to see its' : 'them to a home to see their'} values and to get alerts.
        </Note>
      )}
      <List
        caption="Sensors, those without a home first"
        testid="sensors"
        rows={loadedAt.value === null ? null : rows}
        empty={{
          icon: 'devices',
          title: 'No sensor has sent anything yet',
          hint: 'Sensors appear here by themselves when their first reading arrives.',
        }}
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
                  <Remove sensor={sensor} />
                </span>
              ),
          },
        ]}
      />
      {edited && <Edit sensor={edited} onClose={() => setEdited(null)} />}
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

function Remove({ sensor }: { sensor: Sensor }) {
  const { device, etag } = sensor;
  const remove = async () => {
    try {
      await ask(pathOf(sensor), { method: 'DELETE', ifMatch: etag });
    } catch (error) {
      // Somebody else may have removed or changed it.
      void reload();
      throw error;
    }
    // The button that gets the focus back goes with the sensor.
    void reload().then(() => document.querySelector<HTMLElement>('main h1')?.focus({ preventScroll: true }));
  };
  return (
    <Careful
      label="Remove…"
      what={device}
      class="small quiet"
      testid="remove-sensor"
      question={`Remove sensor ${device}?`}
      yes="Remove sensor"
      done="Sensor removed."
      onYes={remove}
    >
      <p>
        All its readings are deleted for good, with their averages. Its open alerts are cleared; cleared
        alerts stay listed.
      </p>
      <p>If it still sends, its next reading registers it again, without a home.</p>
    </Careful>
  );
}

function pathOf({ device }: Sensor): string {
  return `/sensor/${encodeURIComponent(device)}`;
}

function Edit({ sensor, onClose }: { sensor: Sensor; onClose: () => void }) {
  const silence = (every: string) =>
    numberOf(every)
      ? `It counts as silent after ${duration(3 * Number(every))}.`
      : 'Unknown: it counts as silent after 15 min.';
  return (
    <DialogForm
      title={`Sensor ${sensor.device}`}
      onClose={onClose}
      id="sensor"
      fields={({ every }) => [
        { name: 'home', label: 'Home', options: [['', 'Not assigned'], ...homeOptions()] },
        { name: 'room', label: 'Room', input: { maxLength: 60 } },
        { name: 'model', label: 'Model', input: { maxLength: 60 } },
        {
          name: 'every',
          label: 'Interval, seconds',
          kind: 'number',
          min: 1,
          max: 2_592_000,
          api: 'expected_every_s',
          hint: silence(every),
        },
      ]}
      initial={{
        home: sensor.home ?? '',
        room: sensor.room ?? '',
        model: sensor.model ?? '',
        every: sensor.expected_every_s?.toString() ?? '',
      }}
      submit="Save"
      done="Saved."
      send={async ({ home, room, model, every }) => {
        const about = { home: home || null, room: room || null, model: model || null };
        const json = { ...about, expected_every_s: numberOf(every) };
        await ask(pathOf(sensor), { method: 'PUT', json, ifMatch: sensor.etag });
        void reload();
      }}
    />
  );
}
