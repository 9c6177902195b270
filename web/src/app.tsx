// Which frame is around the page: the app's, the broker's, or none yet.

import { Login } from './pages/login';
import { brokerFrame, resolve, ROUTES } from './routes';
import * as state from './state';
import { Current, Loaded } from './ui/outlet';
import { address, path, register } from './ui/router';
import { Shell } from './ui/shell';

register(ROUTES, resolve);

export function App() {
  if (/^\/broker(\/|$)/.test(address.value)) return <Loaded load={brokerFrame} />;
  // Which of the two it is, is not known yet.
  if (!state.session.value && !state.config.value && !state.configTried.value) return null;
  if (!state.session.value || path.value === '/login') return <Login />;
  return (
    <Shell>
      <Current />
    </Shell>
  );
}
