// The screen of a login, with the fields by whose names password managers know them.

import type { ComponentChildren } from 'preact';
import type { Values } from '../lib/fields';
import { Form, type Field } from './form';
import { Logo } from './icons';

type Names = 'how' | 'user' | 'password' | 'token';

const USER: Field<Names> = {
  name: 'user',
  label: 'User name',
  required: true,
  input: { name: 'username', autocomplete: 'username', autocapitalize: 'none', spellcheck: false },
};
const PASSWORD: Field<Names> = {
  name: 'password',
  label: 'Password',
  kind: 'password',
  required: true,
  input: { autocomplete: 'current-password' },
};
const TOKEN: Field<Names> = {
  name: 'token',
  label: 'Token',
  kind: 'password',
  required: true,
  input: { autocomplete: 'off' },
};
const HOW: Field<Names> = {
  name: 'how',
  label: 'Log in with',
  kind: 'choice',
  options: { password: 'Password', token: 'Token' },
};

export function LoginForm(props: {
  testid: string;
  title: string;
  about: string;
  user?: string;
  /** Whether a token will do instead of user and password. */
  takesTokens?: boolean;
  send: (values: Values<Names>) => Promise<void>;
  children: ComponentChildren;
}) {
  const fields = ({ how }: Partial<Values<Names>>) => [
    ...(props.takesTokens ? [HOW] : []),
    ...(how === 'token' ? [TOKEN] : [USER, PASSWORD]),
  ];
  let isToken = false;
  const send = (values: Values<Names>) => {
    isToken = values.how === 'token';
    return props.send(values);
  };
  return (
    <main class="login" id="main">
      <div class="card" data-testid={props.testid}>
        <Logo size={64} />
        <h1 tabIndex={-1}>{props.title}</h1>
        <p class="muted">{props.about}</p>
        <Form
          fields={fields}
          initial={{ user: props.user ?? '' }}
          submit="Log in"
          send={send}
          keeps
          explain={({ status }) =>
            status === 401 ? (isToken ? 'This token is not valid.' : 'Wrong user name or password.') : null
          }
        />
        {props.children}
      </div>
    </main>
  );
}
