// Topics: retained messages as a tree whose levels are fetched when they are opened, and what is published, live.

import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, problemOf } from '../data/api';
import { times } from '../lib/format';
import { Careful, Form } from '../ui/form';
import { Icon } from '../ui/icons';
import { List } from '../ui/list';
import { Note, Tag } from '../ui/parts';
import { bytes } from './lib';
import { BrokerScreen, Payload, useLive } from './parts';
import { ask, mayOperate, stream } from './state';
import type { Level, Retained, TapLine } from './types';

const LEVELS = 200;
const EVERY_MS = 10_000;
const SHOWN = 200;
const TAP_S = 600;

interface Levels {
  levels: Level[];
  next?: string;
}

export function Topics() {
  const [chosen, setChosen] = useState<string | null>(null);
  return (
    <BrokerScreen>
      <div class="pair">
        <section class="card" aria-labelledby="retained-head" data-testid="topics">
          <h2 id="retained-head">Retained messages</h2>
          <Branch under={null} chosen={chosen} onChoose={setChosen} />
          {chosen !== null && <Message key={chosen} topic={chosen} onGone={() => setChosen(null)} />}
        </section>
        <Tap />
      </div>
    </BrokerScreen>
  );
}

function Branch(props: { under: string | null; chosen: string | null; onChoose: (topic: string) => void }) {
  const { under, chosen, onChoose } = props;
  const query = new URLSearchParams({ limit: String(LEVELS) });
  if (under !== null) query.set('under', under);
  const { data, problem } = useLive<Levels>(`/topics?${query.toString()}`, EVERY_MS);
  return (
    <List
      class="tree"
      rows={data?.levels}
      problem={problem}
      empty={
        under === null
          ? {
              icon: 'rules',
              title: 'No topic has a retained message',
              hint: 'Messages that are published with retain appear here.',
            }
          : null
      }
      rowKey={({ topic }) => topic}
      row={(level) => <Node level={level} chosen={chosen} onChoose={onChoose} />}
      rest={data?.next !== undefined && `These are the first ${LEVELS}.`}
    />
  );
}

function Node(props: { level: Level; chosen: string | null; onChoose: (topic: string) => void }) {
  const { level, chosen, onChoose } = props;
  const [isOpen, setOpen] = useState(false);
  const name = level.level === '' ? '(empty level)' : level.level;
  return (
    <>
      <span class="tree-row">
        {level.has_levels ? (
          <button
            type="button"
            class="quiet small fold"
            aria-expanded={isOpen}
            aria-label={`Levels below ${name}`}
            onClick={() => setOpen(!isOpen)}
          >
            <Icon name="next" size={18} />
          </button>
        ) : (
          <span class="fold" />
        )}
        {level.has_message ? (
          <button
            type="button"
            class="quiet small topic"
            aria-pressed={chosen === level.topic}
            onClick={() => onChoose(level.topic)}
          >
            {name}
          </button>
        ) : (
          <span class="topic">{name}</span>
        )}
      </span>
      {isOpen && <Branch under={level.topic} chosen={chosen} onChoose={onChoose} />}
    </>
  );
}

function Message({ topic, onGone }: { topic: string; onGone: () => void }) {
  const path = `/retained/${encodeURIComponent(topic)}`;
  const { data, problem } = useLive<Retained>(mayOperate.value ? path : null);
  const remove = async () => {
    await ask(path, { method: 'DELETE' });
    onGone();
  };
  return (
    <div class="message" data-testid="message">
      <h3>{topic}</h3>
      {!mayOperate.value && <Note tone="info">Operators see what a message contains; you are a viewer.</Note>}
      {!data && problem && <Note tone="warn">{problem}</Note>}
      {data && (
        <>
          <Payload payload={data.payload} base64={data.payload_base64} bytes={data.payload_bytes} />
          <p class="muted small-text">
            {bytes(data.payload_bytes)}, QoS {data.qos}
          </p>
          {!topic.startsWith('$') && (
            <div class="row">
              <Careful
                label="Delete"
                question="Delete this retained message?"
                yes="Delete"
                done="The retained message is deleted."
                onYes={remove}
              >
                <p>
                  Subscribers of <code>{topic}</code> get an empty message, as MQTT defines it.
                </p>
              </Careful>
            </div>
          )}
        </>
      )}
    </div>
  );
}

interface Numbered extends TapLine {
  number: number;
}

/** Lines of JSON as they come. */
async function readLines(filter: string, abort: AbortSignal, take: (lines: TapLine[]) => void) {
  const query = new URLSearchParams({ filter, for_s: String(TAP_S) });
  const response = await stream(`/tap?${query.toString()}`, abort);
  if (!response.ok || !response.body) {
    throw problemOf(await response.json().catch(() => null), response.status);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop() ?? '';
    take(lines.map((line) => JSON.parse(line) as TapLine));
  }
}

function Tap() {
  const [running, setRunning] = useState<AbortController | null>(null);
  const [lines, setLines] = useState<Numbered[]>([]);
  const [problem, setProblem] = useState<string | null>(null);
  const count = useRef(0);
  useEffect(() => () => running?.abort(), [running]);
  const start = ({ filter }: { filter: string }) => {
    const abort = new AbortController();
    setRunning(abort);
    setProblem(null);
    setLines([]);
    const take = (more: TapLine[]) => {
      const numbered = more.map((line) => ({ ...line, number: (count.current += 1) })).reverse();
      setLines((before) => [...numbered, ...before].slice(0, SHOWN));
    };
    readLines(filter, abort.signal, take)
      .catch((error: unknown) => {
        if (abort.signal.aborted) return;
        setProblem(error instanceof ApiError ? error.message : 'The connection was lost: start again.');
      })
      .finally(() => setRunning((now) => (now === abort ? null : now)));
  };
  if (!mayOperate.value) {
    return (
      <section class="card" aria-labelledby="tap-head">
        <h2 id="tap-head">Live messages</h2>
        <p class="muted">Operators see what is published; you are a viewer.</p>
      </section>
    );
  }
  return (
    <section class="card" aria-labelledby="tap-head" data-testid="tap">
      <div class="row">
        <h2 id="tap-head" class="grow">
          Live messages
        </h2>
        {running && (
          <button type="button" class="small" onClick={() => running.abort()}>
            Stop
          </button>
        )}
      </div>
      <Form
        class="row"
        id="tap"
        fields={[{ name: 'filter', label: 'Topic filter', kind: 'code', required: true }]}
        initial={{ filter: '#' }}
        keeps
        submit="Watch"
        send={start}
      />
      {problem && <Note tone="warn">{problem}</Note>}
      {running && lines.length === 0 && (
        <p class="muted" role="status">
          Nothing published yet.
        </p>
      )}
      <List
        class="tap"
        label="Messages, the newest first"
        rows={lines}
        rowKey={({ number }) => String(number)}
        row={(line) => <TapRow line={line} />}
      />
      <p class="muted small-text">
        The newest {SHOWN}, for ten minutes at most. Each watch is in the log of changes.
      </p>
    </section>
  );
}

function TapRow({ line }: { line: TapLine }) {
  const at = times({ hour: '2-digit', minute: '2-digit', second: '2-digit' })(line.at_ms);
  return (
    <>
      <span class="row">
        <code class="grow topic">{line.topic}</code>
        <small class="muted">
          {at}, QoS {line.qos}
        </small>
        {line.retain && <Tag>retained</Tag>}
        {line.dropped !== undefined && <Tag tone="warn">{line.dropped} missed before</Tag>}
      </span>
      <Payload payload={line.payload} base64={line.payload_base64} bytes={line.payload_bytes} />
    </>
  );
}
