// Logging in to the broker: with user and password, or with a token.

import { useState } from 'preact/hooks';
import { ApiError } from '../data/api';
import * as app from '../state';
import { Logo } from '../ui/icons';
import { Choice, Field, Note } from '../ui/parts';
import { UserAndPassword } from '../ui/user-and-password';
import { logIn } from './state';

type How = 'password' | 'token';

export function SignIn() {
  const [how, setHow] = useState<How>('password');
  const [user, setUser] = useState('');
  const [password, setPassword] = useState('');
  const [token, setToken] = useState('');
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const hasPlatform = app.config.value?.platform !== false;

  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      await logIn(how === 'password' ? { user: user.trim(), password } : { token: token.trim() });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const wrong = how === 'password' ? 'Wrong user name or password.' : 'This token is not valid.';
      setProblem(error.status === 401 ? wrong : error.message);
    } finally {
      setBusy(false);
    }
  };

  return (
    <main class="login" id="main">
      <form class="card" onSubmit={(event) => void submit(event)} data-testid="broker-login">
        <Logo size={64} />
        <h1 tabIndex={-1}>MQTT broker</h1>
        <p class="muted">Log in to operate it</p>
        {problem && (
          <Note tone="bad" role="alert">
            {problem}
          </Note>
        )}
        <Choice
          label="Log in with"
          value={how}
          options={[
            ['password', 'Password'],
            ['token', 'Token'],
          ]}
          onChange={setHow}
        />
        {how === 'password' ? (
          <UserAndPassword user={user} password={password} onUser={setUser} onPassword={setPassword} />
        ) : (
          <Field label="Token" id="token">
            <input
              id="token"
              type="password"
              autocomplete="off"
              required
              value={token}
              onInput={(event) => setToken(event.currentTarget.value)}
            />
          </Field>
        )}
        <button class="primary" type="submit" disabled={busy}>
          {busy ? 'Logging in …' : 'Log in'}
        </button>
        <details class="small-text">
          <summary>No user yet?</summary>
          <p class="muted">On the broker's machine, as the broker's user or root:</p>
          <p>
            <code>fulmar ctl users add NAME --role administrator</code>
          </p>
        </details>
        {hasPlatform && (
          <p class="small-text">
            {/* Loaded anew: while the platform has no users, the server has a greeting there instead of the app. */}
            <a href="/">Open the app for meters and homes instead</a>
          </p>
        )}
      </form>
    </main>
  );
}
