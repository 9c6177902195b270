// The pages of an installation of homes. Fetched when such an installation is first shown: who reads meters does not
// load them.

import './homes.css';

export { Alerts } from './alerts';
export { HomePage } from './home';
export { Homes } from './overview';
export { Rules } from './rules';
export { Sensors } from './sensors';
