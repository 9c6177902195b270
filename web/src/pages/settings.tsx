// Settings of this device, and on a phone the way to what does not fit the bottom bar.

import { useEffect, useState } from 'preact/hooks';
import { APP_VERSION, logout, registerDevice } from '../data/account';
import { saveSettings } from '../data/sync';
import { decimal, plural } from '../lib/format';
import * as state from '../state';
import { Icon } from '../ui/icons';
import { Choice, Dialog, Field, Note, Page } from '../ui/parts';
import { Link } from '../ui/router';
import { BROKER, OFFICE } from '../ui/shell';
import { TypedInput } from '../ui/typed-input';

export function More() {
  return (
    <Page title="More">
      {state.isOffice.value && !state.isHomes.value && (
        <section aria-labelledby="office-head">
          <h2 id="office-head">Office</h2>
          <ul class="rows">
            {OFFICE.map((way) => (
              <li key={way.to}>
                <Link to={way.to} class="row-link">
                  <Icon name={way.icon} />
                  <strong class="grow">{way.text}</strong>
                  <Icon name="next" size={18} />
                </Link>
              </li>
            ))}
          </ul>
        </section>
      )}
      {state.isServerAdmin.value && (
        <section aria-labelledby="server-head">
          <h2 id="server-head">Server</h2>
          <ul class="rows">
            <li>
              <Link to={BROKER.to} class="row-link">
                <Icon name={BROKER.icon} />
                <strong class="grow">{BROKER.text}</strong>
                <Icon name="next" size={18} />
              </Link>
            </li>
          </ul>
        </section>
      )}
      <SettingsSections />
    </Page>
  );
}

export function Settings() {
  return (
    <Page title="Settings">
      <SettingsSections />
    </Page>
  );
}

function SettingsSections() {
  return (
    <>
      <section class="card" aria-labelledby="look">
        <h2 id="look">Appearance</h2>
        <Choice
          label="Theme"
          value={state.theme.value}
          options={[
            ['system', 'Same as device'],
            ['light', 'Light'],
            ['dark', 'Dark'],
          ]}
          onChange={(value) => {
            state.theme.value = value;
            void saveSettings();
          }}
        />
      </section>
      {!state.isHomes.value && <DeviceSection />}
      {!state.isHomes.value && <StorageSection />}
      <AccountSection />
      <p class="muted small-text">
        Fulmar {APP_VERSION}
        {state.config.value && ` · server ${state.config.value.version}`} · device{' '}
        <code>{state.device.value}</code>
      </p>
    </>
  );
}

function DeviceSection() {
  return (
    <section class="card" aria-labelledby="device-head">
      <h2 id="device-head">This device</h2>
      <Field label="Name, as the office sees it" id="device-name">
        <TypedInput
          id="device-name"
          maxLength={60}
          value={state.deviceName.value}
          onDone={(typed) => {
            state.deviceName.value = typed.trim();
            return saveSettings().then(registerDevice);
          }}
        />
      </Field>
      <label class="check">
        <input
          type="checkbox"
          checked={state.keepRoute.value}
          onChange={(event) => {
            state.keepRoute.value = event.currentTarget.checked;
            void saveSettings();
          }}
        />
        <span>
          Record my route while I work
          <small class="muted">
            Off until you switch it on. Then the office sees where you are: position and battery, every 15
            seconds while you move.
          </small>
        </span>
      </label>
      <Field label="Size of photos" id="photo-size" hint="Smaller ones are sent faster over a slow link.">
        <select
          id="photo-size"
          value={state.photoPixels.value}
          onChange={(event) => {
            state.photoPixels.value = Number(event.currentTarget.value);
            void saveSettings();
          }}
        >
          <option value={800}>Small (800 pixels)</option>
          <option value={1280}>Medium (1280 pixels)</option>
          <option value={2048}>Large (2048 pixels)</option>
        </select>
      </Field>
      <Install />
    </section>
  );
}

interface InstallEvent extends Event {
  prompt(): Promise<unknown>;
}

let installEvent: InstallEvent | null = null;
addEventListener('beforeinstallprompt', (event) => {
  event.preventDefault();
  installEvent = event as InstallEvent;
});

function Install() {
  const [offered, setOffered] = useState(installEvent !== null);
  if (!offered) return null;
  const install = () => {
    void installEvent?.prompt();
    installEvent = null;
    setOffered(false);
  };
  return (
    <button type="button" onClick={install}>
      <Icon name="export" /> Install the app on this device
    </button>
  );
}

function StorageSection() {
  const [usage, setUsage] = useState<StorageEstimate | null>(null);
  const [persisted, setPersisted] = useState<boolean | null>(null);
  useEffect(() => {
    void navigator.storage?.estimate?.().then(setUsage);
    void navigator.storage?.persisted?.().then(setPersisted);
  }, []);
  const megabytes = (bytes: number) => `${decimal(bytes / 1e6, 1)} MB`;
  return (
    <section class="card" aria-labelledby="stored">
      <h2 id="stored">Stored on this device</h2>
      <p>
        {plural(state.meters.value.size, 'meter')}, {plural(state.lists.value.length, 'work list')},{' '}
        {plural(state.counts.value.total, 'item')} to send
        {usage?.usage !== undefined && ` · ${megabytes(usage.usage)}`}
      </p>
      {persisted === false && (
        <Note tone="warn">
          The browser may delete this data if the device runs out of space. To prevent that, install the app
          or add it to the home screen.
        </Note>
      )}
    </section>
  );
}

function AccountSection() {
  const [asking, setAsking] = useState(false);
  const waits = state.counts.value.total;
  return (
    <section class="card" aria-labelledby="account">
      <h2 id="account">Account</h2>
      <p>
        {state.user.value?.display_name || state.user.value?.name} · {state.twin.value?.role} in{' '}
        {state.twin.value?.name}
      </p>
      <button
        type="button"
        onClick={() => (waits > 0 ? setAsking(true) : void logout())}
        data-testid="logout"
      >
        <Icon name="out" /> Log out
      </button>
      {asking && (
        <Dialog title="Log out with unsent work?" onClose={() => setAsking(false)}>
          <p>
            {plural(waits, 'item')} not sent yet. They stay on this device and are sent when you log in here
            again; nobody else can send them.
          </p>
          <div class="dialog-actions">
            <button type="button" autofocus onClick={() => setAsking(false)}>
              Stay
            </button>
            <button type="button" class="primary" onClick={() => void logout()}>
              Log out
            </button>
          </div>
        </Dialog>
      )}
    </section>
  );
}
