// MQTT.js over TCP, TLS, WebSocket and WebSocket over TLS, in MQTT 3.1.1 and 5: delivery at each quality
// of service, retained messages, wills, shared subscriptions and lasting sessions.
//
// It starts no broker: ../test_mqttjs.py does, and names its addresses in FULMAR_URLS and its
// authority's certificate in FULMAR_CA.

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { describe, test } from 'node:test'

import mqtt from 'mqtt'

const urls = JSON.parse(process.env.FULMAR_URLS)
const ca = readFileSync(process.env.FULMAR_CA)
const patience = { timeout: 60_000 }

/** A client that gathers what it receives from its first packet on. */
class Client {
  static opened = []

  /** Connects and waits for CONNACK. */
  static async open(where, options = {}) {
    const client = new Client(where, options)
    Client.opened.push(client)
    ;[client.connack] = await once(client.mqtt, 'connect')
    return client
  }

  static async closeAll() {
    await Promise.all(Client.opened.splice(0).map((client) => client.mqtt.endAsync(true)))
  }

  constructor({ url, protocolVersion }, options) {
    this.got = []
    const common = { protocolVersion, ca, reconnectPeriod: 0, rejectUnauthorized: true }
    this.mqtt = mqtt.connect(url, { ...common, ...options })
    this.mqtt.on('message', (topic, payload, packet) => {
      this.got.push({ topic, payload, qos: packet.qos, retain: packet.retain, properties: packet.properties })
      this.mqtt.emit('gathered')
    })
  }

  /** Waits until at least `count` messages have come and gives all of them. */
  async messages(count) {
    while (this.got.length < count) await once(this.mqtt, 'gathered')
    return this.got
  }

  /** What has come before a message sent after all others. */
  async messagesUntil(publisher, topic) {
    await publisher.mqtt.publishAsync(topic, 'the end', { qos: 2 })
    while (!this.got.some(({ payload }) => String(payload) === 'the end')) await once(this.mqtt, 'gathered')
    return this.got.filter(({ payload }) => String(payload) !== 'the end')
  }

  /** Ends as a lost link would, without DISCONNECT. */
  async vanish() {
    const closed = once(this.mqtt, 'close')
    this.mqtt.stream.destroy()
    await closed
  }
}

/** Options of a session that outlives its connection. */
function lasting(where, clientId) {
  const properties = where.protocolVersion === 5 ? { sessionExpiryInterval: 600 } : undefined
  return { clientId, clean: false, properties }
}

async function everyQos(where, root) {
  const sub = await Client.open(where)
  const pub = await Client.open(where)
  await sub.mqtt.subscribeAsync(`${root}/#`, { qos: 2 })
  const payload = Buffer.alloc(5000, 0xa5)
  for (const qos of [0, 1, 2]) await pub.mqtt.publishAsync(`${root}/${qos}`, payload, { qos })
  const got = await sub.messagesUntil(pub, `${root}/end`)
  assert.deepEqual(got.map(({ topic, qos }) => [topic, qos]), [0, 1, 2].map((qos) => [`${root}/${qos}`, qos]))
  for (const message of got) assert.ok(payload.equals(message.payload))
}

async function retained(where, root) {
  const pub = await Client.open(where)
  await pub.mqtt.publishAsync(`${root}/kept`, 'old', { qos: 1, retain: true })
  await pub.mqtt.publishAsync(`${root}/kept`, 'new', { qos: 1, retain: true })
  await pub.mqtt.publishAsync(`${root}/cleared`, 'gone', { qos: 1, retain: true })
  await pub.mqtt.publishAsync(`${root}/cleared`, '', { qos: 1, retain: true })
  const sub = await Client.open(where)
  await sub.mqtt.subscribeAsync(`${root}/+`, { qos: 1 })
  const got = await sub.messagesUntil(pub, `${root}/end`)
  assert.deepEqual(got.map(({ topic, payload, retain }) => [topic, String(payload), retain]), [
    [`${root}/kept`, 'new', true],
  ])
}

async function wills(where, root) {
  const sub = await Client.open(where)
  await sub.mqtt.subscribeAsync(`${root}/#`, { qos: 1 })
  const will = (name) => ({ will: { topic: `${root}/${name}`, payload: Buffer.from('lost'), qos: 1 } })
  const polite = await Client.open(where, will('polite'))
  await polite.mqtt.endAsync()
  const cut = await Client.open(where, will('cut'))
  await cut.vanish()
  const [message] = await sub.messages(1)
  assert.equal(message.topic, `${root}/cut`)
  assert.equal(String(message.payload), 'lost')
  assert.deepEqual(await sub.messagesUntil(await Client.open(where), `${root}/end`), [message])
}

async function sharedSubscription(where, root) {
  const members = [await Client.open(where), await Client.open(where)]
  const pub = await Client.open(where)
  for (const member of members) {
    await member.mqtt.subscribeAsync([`$share/group/${root}/work`, `${root}/end`], { qos: 2 })
  }
  const work = Array.from({ length: 40 }, (_, number) => String(number))
  for (const item of work) await pub.mqtt.publishAsync(`${root}/work`, item, { qos: 1 })
  const shares = []
  for (const member of members) shares.push(await member.messagesUntil(pub, `${root}/end`))
  const done = shares.flat().map(({ payload }) => Number(payload))
  assert.deepEqual(done.sort((a, b) => a - b), work.map(Number), 'each message once')
  for (const share of shares) assert.ok(share.length > 0, 'a member got nothing')
}

async function resumedSession(where, root) {
  const options = lasting(where, `${root}/sleeper`.replaceAll('/', '-'))
  const before = await Client.open(where, options)
  assert.equal(before.connack.sessionPresent, false)
  await before.mqtt.subscribeAsync(`${root}/#`, { qos: 2 })
  await before.vanish()
  const pub = await Client.open(where)
  for (const qos of [1, 2]) await pub.mqtt.publishAsync(`${root}/${qos}`, 'while away', { qos })
  const after = await Client.open(where, options)
  assert.equal(after.connack.sessionPresent, true)
  const got = await after.messagesUntil(pub, `${root}/end`)
  assert.deepEqual(got.map(({ topic, qos }) => [topic, qos]), [1, 2].map((qos) => [`${root}/${qos}`, qos]))
}

/** The link is lost after the first retained messages for a subscription; the session is resumed without another one. */
async function interruptedRetained(where, root) {
  const pub = await Client.open(where)
  const topics = Array.from({ length: 500 }, (_, number) => `${root}/${number}`)
  await Promise.all(topics.map((topic) => pub.mqtt.publishAsync(topic, 'x', { qos: 1, retain: true })))
  const options = lasting(where, `${root}/reader`.replaceAll('/', '-'))
  options.properties.receiveMaximum = 20
  const before = await Client.open(where, options)
  const closed = once(before.mqtt, 'close')
  before.mqtt.on('gathered', () => before.got.length === 20 && before.mqtt.stream.destroy())
  before.mqtt.subscribe(`${root}/+`, { qos: 1 })
  await closed
  const after = await Client.open(where, options)
  assert.equal(after.connack.sessionPresent, true)
  const got = () => new Set([...before.got, ...after.got].map(({ topic }) => topic))
  while (got().size < topics.length) await once(after.mqtt, 'gathered')
}

/**
 * Links are cut while messages are under way in both directions; MQTT.js itself reconnects and repeats. It
 * reports a PUBREL that it repeated and that had been taken before (reason 0x92) as a failure, which is not one.
 */
async function cutMidFlow(where, root) {
  const name = root.replaceAll('/', '-')
  const sub = await Client.open(where, { ...lasting(where, `${name}-sub`), reconnectPeriod: 1 })
  const pub = await Client.open(where, { ...lasting(where, `${name}-pub`), reconnectPeriod: 1 })
  await sub.mqtt.subscribeAsync(`${root}/#`, { qos: 2 })
  const sent = []
  const takenBefore = (error) => assert.equal(error.code, 0x92, error)
  for (let number = 0; number < 300; number += 1) {
    const done = pub.mqtt.publishAsync(`${root}/${number}`, String(number), { qos: 2 })
    sent.push(done.catch(takenBefore))
    if (number % 100 === 50) {
      await sent[number - 40]
      const back = [sub, pub].map((client) => once(client.mqtt, 'connect'))
      for (const client of [sub, pub]) client.mqtt.stream.destroy()
      await Promise.all([...back, ...sent])
    }
  }
  await Promise.all(sent)
  const got = await sub.messagesUntil(pub, `${root}/end`)
  const numbers = got.map(({ payload }) => Number(payload)).sort((a, b) => a - b)
  assert.deepEqual(numbers, sent.map((_, number) => number), 'each message once')
}

async function propertiesOfMqtt5(where, root) {
  const sub = await Client.open(where)
  const pub = await Client.open(where)
  await sub.mqtt.subscribeAsync(`${root}/asked`, { qos: 1, properties: { subscriptionIdentifier: 77 } })
  const properties = {
    contentType: 'text/plain',
    correlationData: Buffer.from([1, 2, 3]),
    messageExpiryInterval: 1000,
    payloadFormatIndicator: true,
    responseTopic: `${root}/answer`,
    userProperties: { unit: 'kWh' },
  }
  await pub.mqtt.publishAsync(`${root}/asked`, 'reading', { qos: 1, properties })
  const [{ properties: arrived }] = await sub.messages(1)
  assert.ok(arrived.messageExpiryInterval <= 1000)
  const expected = { ...properties, messageExpiryInterval: arrived.messageExpiryInterval, subscriptionIdentifier: 77 }
  assert.deepEqual({ ...arrived, userProperties: { ...arrived.userProperties } }, expected)
}

const transports = ['mqtt', 'mqtts', 'ws', 'wss']
const shown = {
  'each quality of service, in order': everyQos,
  'retained messages': retained,
  'a will after a lost link, none after a DISCONNECT': wills,
  'a shared subscription': sharedSubscription,
  'a session resumed with what it missed': resumedSession,
  'QoS 2 exactly once over links cut mid-flow': cutMidFlow,
}

const shownIn5 = {
  'properties of MQTT 5': propertiesOfMqtt5,
  'retained messages go on after a lost link': interruptedRetained,
}

for (const transport of transports) {
  for (const protocolVersion of [4, 5]) {
    const where = { url: urls[transport], protocolVersion }
    const version = protocolVersion === 4 ? '3.1.1' : '5'
    describe(`MQTT.js, ${transport}, MQTT ${version}`, patience, () => {
      const tests = protocolVersion === 5 ? { ...shown, ...shownIn5 } : shown
      for (const [name, play] of Object.entries(tests)) {
        test(name, patience, async (context) => {
          context.after(Client.closeAll)
          await play(where, `js/${transport}/${protocolVersion}/${play.name}`)
        })
      }
    })
  }
}
