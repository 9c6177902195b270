// Settings of this device, and on a phone the way to what does not fit the bottom bar.

import { useEffect, useState } from 'preact/hooks';
import { APP_VERSION, logout, registerDevice } from '../data/account';
import { saveSettings } from '../data/sync';
import { decimal, plural } from '../lib/format';
import * as state from '../state';
import { Careful, FieldView } from '../ui/form';
import { Icon } from '../ui/icons';
import { List } from '../ui/list';
import { Choice, Note, Page } from '../ui/parts';
import { Link } from '../ui/router';
import { furtherMenus } from '../ui/shell';
import { TypedInput } from '../ui/typed-input';

export function More() {
  return (
    <Page>
      {furtherMenus().map(({ head, ways }) => (
        <section key={head} aria-label={head}>
          <h2>{head}</h2>
          <List
            class="rows"
            rows={ways}
            rowKey={({ path }) => path}
            row={({ path, title, name, icon }) => (
              <Link to={path} class="row-link">
                {icon && <Icon name={icon} />}
                <strong class="grow">{name ?? title}</strong>
                <Icon name="next" size={18} />
              </Link>
            )}
          />
        </section>
      ))}
      <SettingsSections />
    </Page>
  );
}

export function Settings() {
  return (
    <Page>
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
          options={{ system: 'Same as device', light: 'Light', dark: 'Dark' }}
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

const PHOTOS = { 800: 'Small (800 pixels)', 1280: 'Medium (1280 pixels)', 2048: 'Large (2048 pixels)' };

function DeviceSection() {
  return (
    <section class="card" aria-labelledby="device-head">
      <h2 id="device-head">This device</h2>
      <FieldView field={{ name: 'name', label: 'Name, as the office sees it' }} id="device-name">
        <TypedInput
          id="device-name"
          maxLength={60}
          value={state.deviceName.value}
          onDone={(typed) => {
            state.deviceName.value = typed.trim();
            return saveSettings().then(registerDevice);
          }}
        />
      </FieldView>
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
      <FieldView
        field={{
          name: 'size',
          label: 'Size of photos',
          hint: 'Smaller ones are sent faster over a slow link.',
          options: PHOTOS,
        }}
        id="photo-size"
        value={String(state.photoPixels.value)}
        set={(value) => {
          state.photoPixels.value = Number(value);
          void saveSettings();
        }}
      />
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
  const waits = state.counts.value.total;
  const button = (
    <>
      <Icon name="out" /> Log out
    </>
  );
  return (
    <section class="card" aria-labelledby="account">
      <h2 id="account">Account</h2>
      <p>
        {state.user.value?.display_name || state.user.value?.name} · {state.twin.value?.role} in{' '}
        {state.twin.value?.name}
      </p>
      {waits === 0 ? (
        <button type="button" onClick={() => void logout()} data-testid="logout">
          {button}
        </button>
      ) : (
        <Careful
          label={button}
          class=""
          testid="logout"
          question="Log out with unsent work?"
          yes="Log out"
          tone="primary"
          cancel="Stay"
          onYes={logout}
        >
          <p>
            {plural(waits, 'item')} not sent yet. They stay on this device and are sent when you log in here
            again; nobody else can send them.
          </p>
        </Careful>
      )}
    </section>
  );
}
