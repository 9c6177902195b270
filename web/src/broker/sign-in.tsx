// Logging in to the broker: with user and password, or with a token.

import * as app from '../state';
import { LoginForm } from '../ui/login-form';
import { logIn } from './state';

export function SignIn() {
  return (
    <LoginForm
      testid="broker-login"
      title="MQTT broker"
      about="Log in to operate it"
      takesTokens
      send={({ how, user, password, token }) =>
        logIn(how === 'token' ? { token: token.trim() } : { user, password })
      }
    >
      <details class="small-text">
        <summary>No user yet?</summary>
        <p class="muted">On the broker's machine, as the broker's user or root:</p>
        <p>
          <code>fulmar ctl users add NAME --role administrator</code>
        </p>
      </details>
      {app.config.value?.platform !== false && (
        <p class="small-text">
          {/* Loaded anew: while the platform has no users, the server has a greeting there instead of the app. */}
          <a href="/">Open the app for meters and homes instead</a>
        </p>
      )}
    </LoginForm>
  );
}
