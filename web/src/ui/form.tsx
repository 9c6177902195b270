// The app's forms: fields with labels, hints and what is wrong with them, one request at a time, and the server's
// answer where it belongs. Nothing that was typed is lost when it is refused.

import type { ComponentChildren, InputHTMLAttributes } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError } from '../data/api';
import {
  placeProblem,
  trimmed,
  validate,
  type Faults,
  type Kind,
  type Rules,
  type Values,
} from '../lib/fields';
import * as state from '../state';
import { Icon, type IconName } from './icons';
import { Choice, Dialog, Note } from './parts';

/** Values and what they are called; as pairs where the order is not that of an object. */
export type Options = readonly (readonly [string, string])[] | Readonly<Record<string, string>>;

const pairs = (options: Options = []) =>
  Array.isArray(options)
    ? (options as readonly (readonly [string, string])[])
    : Object.entries<string>(options as Record<string, string>);

export interface Field<K extends string> extends Rules<K> {
  label: string;
  hint?: ComponentChildren;
  options?: Options;
  /** Behind the value, such as its unit. */
  suffix?: string;
  /** Checked while it is typed. */
  isEager?: boolean;
  /** Shown by the form's `children`. */
  isPlaced?: boolean;
  /** Whatever else the input has. */
  input?: InputHTMLAttributes;
}

interface Action<K extends string> {
  label: string;
  send: (values: Values<K>) => unknown;
  /** Said when it is done. */
  done?: string | undefined;
  /** Fields that have to be right for it; all, unless given. */
  checks?: readonly K[];
}

interface Shown<K extends string> {
  values: Values<K>;
  field: (name: K) => ComponentChildren;
}

export interface FormProps<K extends string> {
  /** Begins the ids of the fields. */
  id?: string;
  testid?: string;
  class?: string;
  label?: string;
  fields: readonly Field<K>[] | ((values: Values<K>) => readonly Field<K>[]);
  initial?: Partial<Record<K, string>>;
  submit: string;
  icon?: IconName;
  tone?: 'primary' | 'danger' | '';
  send: (values: Values<K>) => unknown;
  done?: string | undefined;
  others?: readonly Action<K>[];
  cancel?: string;
  onCancel?: () => void;
  /** Whether only the other buttons do something. */
  isBlocked?: boolean;
  /** Stays as it is when it was sent. */
  keeps?: boolean;
  /** Better words for an error than the server's. */
  explain?: (error: ApiError) => string | null;
  actions?: string;
  /** Between the fields and the buttons. */
  children?: ComponentChildren | ((form: Shown<K>) => ComponentChildren);
}

export function Form<K extends string>(props: FormProps<K>) {
  const { id, others = [], submit, tone = 'primary' } = props;
  const [typed, setTyped] = useState(() => ({ ...props.initial }) as Values<K>);
  const [faults, setFaults] = useState<Faults<K>>({});
  const [problem, setProblem] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  // The state is that of the last drawing; two clicks may come before the next.
  const isSending = useRef(false);
  const [wrong, setWrong] = useState<{ name: string } | null>(null);
  const fields = typeof props.fields === 'function' ? props.fields(typed) : props.fields;
  const unset = fields.map(({ name, options }) => [name, pairs(options)[0]?.[0] ?? '']);
  const values = { ...(Object.fromEntries(unset) as Values<K>), ...typed };
  const idOf = (name: string) => (id ? `${id}-${name}` : name);
  useEffect(() => {
    if (wrong) document.getElementById(idOf(wrong.name))?.focus();
  }, [wrong]);

  /** The browser gives a number that is none as empty. */
  const isNoNumber = (name: K) =>
    (document.getElementById(idOf(name)) as HTMLInputElement | null)?.validity.badInput === true;
  const refuse = (found: Faults<K>) => {
    setFaults(found);
    const first = fields.find(({ name }) => found[name]);
    if (first) setWrong({ name: first.name });
    return first !== undefined;
  };
  const set = (name: K, value: string) => {
    setTyped((before) => ({ ...before, [name]: value }));
    setFaults((before) => ({ ...before, [name]: undefined }));
  };
  const run = async ({ send, done, checks }: Action<K>) => {
    if (isSending.current) return;
    setProblem(null);
    const sent = trimmed(fields, values);
    const checked = fields.filter(({ name, input }) => !input?.disabled && (checks?.includes(name) ?? true));
    if (refuse(validate(checked, sent, isNoNumber))) return;
    isSending.current = true;
    setBusy(true);
    try {
      await send(sent);
      if (done) state.say(done, 'good');
      // What was typed goes, what was chosen stays: the next may be like it.
      const isTyped = ({ options, kind }: Field<K>) => !options && kind !== 'checkbox' && !props.keeps;
      setTyped((now) => {
        const after: Record<K, string> = { ...now };
        // What was typed meanwhile stays.
        const cleared = fields.filter(isTyped).filter(({ name }) => now[name] === typed[name]);
        for (const { name } of cleared) after[name] = props.initial?.[name] ?? '';
        return after;
      });
    } catch (error) {
      if (!(error instanceof ApiError)) {
        setProblem(
          'This failed on this device, perhaps because its storage is full. What you typed is still here.',
        );
        throw error;
      }
      const { faults: found, rest } = placeProblem(error, fields);
      refuse(found);
      setProblem(props.explain?.(error) ?? rest);
    } finally {
      isSending.current = false;
      setBusy(false);
    }
  };
  const shown = (field: Field<K>) => {
    const { name, isEager, check } = field;
    const value = values[name];
    const early = isEager && value !== '' ? check?.(value, values) : null;
    const fault = faults[name] ?? early ?? undefined;
    const change = (typed: string) => set(name, typed);
    return <FieldView key={name} field={field} id={idOf(name)} value={value} fault={fault} set={change} />;
  };
  const field = (name: K) => fields.filter((one) => one.name === name).map(shown);
  const open = fields.filter(({ isPlaced }) => !isPlaced);
  return (
    <form
      class={`form ${props.class ?? ''}`}
      noValidate
      aria-label={props.label}
      aria-busy={isBusy}
      data-testid={props.testid}
      onSubmit={(event) => {
        event.preventDefault();
        void run({ label: submit, send: props.send, done: props.done });
      }}
    >
      {open.length > 0 && <div class="form-grid">{open.map(shown)}</div>}
      {typeof props.children === 'function' ? props.children({ values, field }) : props.children}
      {problem && (
        <Note tone="bad" role="alert">
          {problem}
        </Note>
      )}
      <div class={props.actions ?? 'form-actions'}>
        {others.map((one) => (
          <button key={one.label} type="button" aria-disabled={isBusy} onClick={() => void run(one)}>
            {one.label}
          </button>
        ))}
        {props.onCancel && (
          <button type="button" autofocus={fields.length === 0} onClick={props.onCancel}>
            {props.cancel ?? 'Cancel'}
          </button>
        )}
        <button type="submit" class={tone} disabled={props.isBlocked} aria-disabled={isBusy}>
          {props.icon && <Icon name={props.icon} />} {isBusy ? 'Sending …' : submit}
        </button>
      </div>
    </form>
  );
}

/** A form in front of everything else; it closes when its request is done. */
export function DialogForm<K extends string>(
  props: FormProps<K> & { title: string; intro?: ComponentChildren; onClose: () => void },
) {
  const { title, intro, onClose, send, others, ...form } = props;
  const closing = (action: (values: Values<K>) => unknown) => async (values: Values<K>) => {
    await action(values);
    onClose();
  };
  return (
    <Dialog title={title} onClose={onClose}>
      {intro}
      <Form
        actions="dialog-actions"
        {...form}
        send={closing(send)}
        others={others?.map((one) => ({ ...one, send: closing(one.send) })) ?? []}
        onCancel={onClose}
      />
    </Dialog>
  );
}

/** A button that asks before it acts. */
export function Careful(props: {
  label: ComponentChildren;
  /** What the button adds for screen readers. */
  what?: string;
  question: string;
  class?: string;
  testid?: string;
  /** On the button that acts. */
  yes: string;
  tone?: 'primary' | 'danger';
  cancel?: string;
  done?: string;
  fields?: readonly Field<string>[];
  initial?: Record<string, string>;
  children: ComponentChildren;
  onYes: (values: Values<string>) => unknown;
}) {
  const { label, what, question, yes, tone = 'danger', fields = [], children, onYes, ...form } = props;
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <button
        type="button"
        class={props.class ?? 'small'}
        onClick={() => setOpen(true)}
        data-testid={props.testid}
      >
        {label}
        {what && <span class="sr-only"> {what}</span>}
      </button>
      {isOpen && (
        <DialogForm
          {...form}
          id="careful"
          class=""
          testid="question"
          title={question}
          intro={children}
          fields={fields}
          submit={yes}
          tone={tone}
          send={onYes}
          onClose={() => setOpen(false)}
        />
      )}
    </>
  );
}

interface ControlProps<K extends string> {
  field: Field<K>;
  id: string;
  value?: string;
  fault?: string | undefined;
  set?: (value: string) => void;
}

/** A field with its label, what is wrong with it, and its hint. */
export function FieldView<K extends string>(props: ControlProps<K> & { children?: ComponentChildren }) {
  const { field, id, fault } = props;
  const { label, hint, suffix, kind } = field;
  if (kind === 'checkbox' || kind === 'choice') return <Control {...props} />;
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <div class={suffix && 'value-input'}>
        {props.children ?? <Control {...props} />}
        {suffix && <span class="unit">{suffix}</span>}
      </div>
      {fault && (
        <p class="fault" id={`${id}-fault`} role="alert">
          {fault}
        </p>
      )}
      {hint && (
        <p class="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

const INPUTS: Partial<Record<Kind, InputHTMLAttributes>> = {
  code: { type: 'text', autocapitalize: 'none', autocomplete: 'off', spellcheck: false },
  decimal: { type: 'text', inputMode: 'decimal', autocomplete: 'off' },
  number: { type: 'number', step: 'any' },
};

/** A field without its label, which then is its name for screen readers only. */
function Control<K extends string>(props: ControlProps<K> & { isAlone?: boolean }) {
  const { field, id, value = '', fault, set = () => undefined, isAlone } = props;
  const { label, options, kind = 'text', required, hint, min, max, input } = field;
  const onInput = (event: { currentTarget: { value: string } }) => set(event.currentTarget.value);
  const described = [hint && !isAlone && `${id}-hint`, fault && `${id}-fault`].filter(Boolean).join(' ');
  const common = {
    id,
    value,
    onInput,
    'aria-label': isAlone ? label : undefined,
    placeholder: isAlone ? label : undefined,
    'aria-required': required ? true : undefined,
    'aria-invalid': fault ? true : undefined,
    'aria-describedby': described || undefined,
  };
  if (kind === 'checkbox') {
    return (
      <label class="check">
        <input type="checkbox" checked={value !== ''} onChange={() => set(value === '' ? 'on' : '')} />
        <span>{label}</span>
      </label>
    );
  }
  if (kind === 'choice')
    return <Choice label={label} value={value} options={Object.fromEntries(pairs(options))} onChange={set} />;
  if (options) {
    return (
      <select {...common}>
        {pairs(options).map(([one, text]) => (
          <option key={one} value={one}>
            {text}
          </option>
        ))}
      </select>
    );
  }
  if (kind === 'textarea') return <textarea rows={2} maxLength={500} {...common} />;
  return <input name={field.name} type={kind} min={min} max={max} {...INPUTS[kind]} {...common} {...input} />;
}

/** Fields above a list, which say what is in it. */
export function Filters<K extends string>(props: {
  fields: readonly Field<K>[];
  values: Values<K>;
  onChange: (values: Values<K>) => void;
}) {
  const { fields, values, onChange } = props;
  return (
    <div class="filters">
      {fields.map((field) => (
        <Control
          key={field.name}
          field={field}
          id={`filter-${field.name}`}
          value={values[field.name]}
          set={(value) => onChange({ ...values, [field.name]: value })}
          isAlone
        />
      ))}
    </div>
  );
}
