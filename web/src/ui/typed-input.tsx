// A text field for a value that others may change too: what somebody is typing stays until it is finished
// (Enter, or leaving the field), whatever arrives from the server meanwhile.

import type { InputHTMLAttributes } from 'preact';
import { useState } from 'preact/hooks';

interface Props extends Omit<InputHTMLAttributes, 'value' | 'onInput' | 'onChange' | 'onBlur'> {
  value: string;
  /** Stores what was typed. When it is done, the field shows `value` again, which then is the new one or, after a refusal, the old one. */
  onDone: (typed: string) => Promise<unknown>;
}

export function TypedInput({ value, onDone, ...rest }: Props) {
  const [draft, setDraft] = useState<string | null>(null);
  return (
    <input
      {...rest}
      value={draft ?? value}
      onInput={(event) => setDraft(event.currentTarget.value)}
      onChange={(event) => void onDone(event.currentTarget.value).finally(() => setDraft(null))}
      onBlur={() => draft === value && setDraft(null)}
    />
  );
}
