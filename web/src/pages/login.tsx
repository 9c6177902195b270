// Logging in: the only screen of somebody who is not.

import { login } from '../data/account';
import * as state from '../state';
import { LoginForm } from '../ui/login-form';
import { Link, navigate } from '../ui/router';

export function Login() {
  const demo = state.config.value?.demo;
  return (
    <LoginForm
      testid="login"
      title={state.config.value?.title ?? 'Fulmar'}
      about="Meter reading"
      user={state.user.value?.name ?? ''}
      send={({ user, password }) => login(user, password, () => navigate('/', 'replace'))}
    >
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
    </LoginForm>
  );
}
