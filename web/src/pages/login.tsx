// Logging in: the only screen of somebody who is not.

import { useState } from 'preact/hooks';
import { ApiError } from '../data/api';
import { login } from '../data/account';
import * as state from '../state';
import { Logo } from '../ui/icons';
import { Note } from '../ui/parts';
import { Link, navigate } from '../ui/router';
import { UserAndPassword } from '../ui/user-and-password';

export function Login() {
  const demo = state.config.value?.demo;
  const [user, setUser] = useState(state.user.value?.name ?? '');
  const [password, setPassword] = useState('');
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);

  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      await login(user.trim(), password, () => navigate('/', 'replace'));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setProblem(error.status === 401 ? 'Wrong user name or password.' : error.message);
    } finally {
      setBusy(false);
    }
  };

  return (
    <main class="login" id="main">
      <form class="card" onSubmit={(event) => void submit(event)} data-testid="login">
        <Logo size={64} />
        <h1 tabIndex={-1}>{state.config.value?.title ?? 'Fulmar'}</h1>
        <p class="muted">Meter reading</p>
        {problem && (
          <Note tone="bad" role="alert">
            {problem}
          </Note>
        )}
        <UserAndPassword user={user} password={password} onUser={setUser} onPassword={setPassword} />
        <button class="primary" type="submit" disabled={busy}>
          {busy ? 'Logging in …' : 'Log in'}
        </button>
        {demo?.user && demo.password && (
          <p class="muted small-text">
            Demonstration: <code>{demo.user}</code> / <code>{demo.password}</code>
          </p>
        )}
        <p class="small-text">
          <Link to="/broker">Operate the broker</Link>
        </p>
        {state.mine.value.length > 0 && (
          <p class="muted small-text">Your readings stay on this device and are sent after you log in.</p>
        )}
      </form>
    </main>
  );
}
