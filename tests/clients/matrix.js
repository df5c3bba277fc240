// What a NATS client on Node can do with a broker: one check a run. See test_clients.py.
//
//   node matrix.js MODULE CHECK        MODULE: the folder of `nats` or of `@nats-io/transport-node`
//   NATS_URL, NATS_TOKEN, NATS_USER, NATS_PASSWORD, NATS_CA
const [modulePath, check] = process.argv.slice(2);
const { connect, headers } = require(modulePath);
const env = process.env;
const encoder = new TextEncoder();
const decoder = new TextDecoder();
const COUNT = 100;

function options() {
  const found = { servers: env.NATS_URL, reconnectTimeWait: 50, maxReconnectAttempts: 200, timeout: 5000 };
  if (env.NATS_TOKEN) found.token = env.NATS_TOKEN;
  if (env.NATS_USER) Object.assign(found, { user: env.NATS_USER, pass: env.NATS_PASSWORD });
  if (env.NATS_CA) found.tls = { caFile: env.NATS_CA };
  return found;
}

function expect(what, actual, expected) {
  if (JSON.stringify(actual) !== JSON.stringify(expected)) {
    throw new Error(`${what}: ${JSON.stringify(actual)}, not ${JSON.stringify(expected)}`);
  }
}

const numbers = [...Array(COUNT).keys()].map(String);

async function take(subscription, count) {
  const got = [];
  for await (const message of subscription) {
    got.push(decoder.decode(message.data));
    if (got.length === count) break;
  }
  return got;
}

const CHECKS = {
  async pubsub() {
    const [one, other] = [await connect(options()), await connect(options())];
    const taking = take(one.subscribe("pubsub.*"), COUNT);
    await one.flush();
    for (const n of numbers) other.publish(`pubsub.${n % 7}`, encoder.encode(n));
    expect("received", await taking, numbers);
    await one.close();
    await other.close();
  },

  async queue() {
    const clients = [await connect(options()), await connect(options()), await connect(options())];
    const got = [[], []];
    for (const k of [0, 1]) {
      clients[k].subscribe("queue", { queue: "workers", callback: (_, m) => got[k].push(decoder.decode(m.data)) });
      await clients[k].flush();
    }
    for (const n of numbers) clients[2].publish("queue", encoder.encode(n));
    await clients[2].flush();
    for (const client of clients.slice(0, 2)) await client.flush();
    expect("in all", [...got[0], ...got[1]].sort((a, b) => a - b), numbers);
    expect("shared", got.every((each) => each.length > 0), true);
    for (const client of clients) await client.close();
  },

  async request() {
    const [one, other] = [await connect(options()), await connect(options())];
    one.subscribe("service", { callback: (_, m) => m.respond(encoder.encode(`re ${decoder.decode(m.data)}`)) });
    await one.flush();
    const answers = await Promise.all(
      numbers.map((n) => other.request("service", encoder.encode(n), { timeout: 5000 })),
    );
    expect("answers", answers.map((m) => decoder.decode(m.data)), numbers.map((n) => `re ${n}`));
    const error = await other.request("nobody", undefined, { timeout: 5000 }).catch((e) => e);
    expect("without a responder", /503|no ?responders/i.test(`${error.code} ${error.name} ${error.message}`), true);
    await one.close();
    await other.close();
  },

  async headers() {
    const client = await connect(options());
    const subscription = client.subscribe("headers", { max: 1 });
    const sent = headers();
    sent.append("Kind", "test");
    sent.append("Many", "a");
    sent.append("Many", "b");
    client.publish("headers", encoder.encode("body"), { headers: sent });
    for await (const m of subscription) {
      expect("headers", [m.headers.get("Kind"), m.headers.values("Many")], ["test", ["a", "b"]]);
      expect("body", decoder.decode(m.data), "body");
    }
    await client.close();
  },

  async drain() {
    const [one, other] = [await connect(options()), await connect(options())];
    const got = [];
    one.subscribe("drain", { callback: (_, m) => got.push(decoder.decode(m.data)) });
    await one.flush();
    for (const n of numbers) other.publish("drain", encoder.encode(n));
    await other.flush();
    await one.drain();
    expect("received", got, numbers);
    expect("closed", one.isClosed(), true);
    await other.close();
  },

  async reconnect() {
    const client = await connect(options());
    (async () => {
      for await (const status of client.status()) {
        if (status.type === "reconnect") console.log("RECONNECTED");
        if (status.type === "update") console.log("TOLD", ...(status.data ?? status).added ?? []);
        if (status.type === "ldm") console.log("LAMEDUCK");
      }
    })();
    const subscription = client.subscribe("reconnect");
    await client.flush();
    console.log("READY");
    for await (const m of subscription) {
      console.log("GOT", decoder.decode(m.data));
      if (decoder.decode(m.data) === "last") break;
    }
    await client.close();
  },

  async refused() {
    const error = await connect({ ...options(), reconnect: false }).then(() => undefined, (e) => e);
    expect("refused", /authorization/i.test(`${error?.code} ${error?.name} ${error?.message}`), true);
  },
};

CHECKS[check]().then(() => console.log("OK"), (error) => {
  console.error(error);
  process.exit(1);
});
