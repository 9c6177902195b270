// The two fields of a login, with the names by which password managers know them.

import { Field } from './parts';

export function UserAndPassword(props: {
  user: string;
  password: string;
  onUser: (user: string) => void;
  onPassword: (password: string) => void;
}) {
  return (
    <>
      <Field label="User name" id="user">
        <input
          id="user"
          name="username"
          autocomplete="username"
          autocapitalize="none"
          spellcheck={false}
          required
          value={props.user}
          onInput={(event) => props.onUser(event.currentTarget.value)}
        />
      </Field>
      <Field label="Password" id="password">
        <input
          id="password"
          name="password"
          type="password"
          autocomplete="current-password"
          required
          value={props.password}
          onInput={(event) => props.onPassword(event.currentTarget.value)}
        />
      </Field>
    </>
  );
}
